"""What a training that ran out of memory left for its next start: how often the micro-batch was halved.

Kept as a note in the store beside the training's lease, so that a new pod, or the other processes, begin with what
fits. Called by stages.py.
"""

import json

from components.storage.store import ArtifactStore


def read_halvings(store: ArtifactStore, key: str) -> int:
    """How often the micro-batch has been halved, 0 at first.

    Args:
        store: the artifact store.
        key: the training hash.
    """
    note = store.read_note(_name(key))
    return int(json.loads(note.content)["halvings"]) if note else 0


def write_halvings(store: ArtifactStore, key: str, halvings: int) -> None:
    """Note it.

    Args:
        store: the artifact store.
        key: the training hash.
        halvings: how often.
    """
    note = store.read_note(_name(key))
    if note and int(json.loads(note.content)["halvings"]) >= halvings:
        return  # another process was first
    store.write_note(_name(key), json.dumps({"halvings": halvings}).encode(), replaces=note.tag if note else None)


def _name(key: str) -> str:
    return f"micro-batches/{key[:32]}.json"
