"""A deterministic stop leaves a marker in the store, so that the same work again ends at once instead of paying again.

Used by steps whose gate fails the same way every time (smoke test, guard of a training, verdict): a platform that
retries a failed pod gets the same sentence in seconds. The caller's name holds everything the outcome depends on, so
changed inputs or code run anew. Limits: a stop that was due to something outside the inputs has to be cleared by a
person, as the message says.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from components.errors import GateFailedError
from components.storage.store import ArtifactStore, NoteChangedError


@contextmanager
def remembered_stop(store: ArtifactStore, name: str, *, again: str) -> Iterator[None]:
    """Run the body unless it stopped before; when a gate stops it now, remember that.

    Args:
        store: where the marker is kept.
        name: names the step and all its inputs, such as `smoke_tests/<hash>`; of the form of a key.
        again: what a person changes to run it anew, for the message.

    Raises:
        GateFailedError: the body's, or the remembered one.
    """
    place = f"stops/{name}"
    note = store.read_note(place)
    if note is not None:
        raise GateFailedError(f"{json.loads(note.content)['message']} (stopped so before, not run again; {again})")
    try:
        yield
    except GateFailedError as error:
        with suppress(NoteChangedError):  # another attempt was first
            store.write_note(place, json.dumps({"message": str(error)}).encode(), replaces=None)
        raise
