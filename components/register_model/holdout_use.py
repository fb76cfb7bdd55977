"""How often a holdout has been used: the more models were judged on it, the less a new result on it means.

Called by register_model (report, tags of the run) and by `grpo show`. The store is the record: evaluate_holdout keeps
each evaluation below `evaluations/<first 12 digits of the holdout's fingerprint>/<completions>-<how they were scored>`,
nothing is overwritten there, and the same completions scored with other rewards are one use. Limit: uses in another
store, and evaluations that were removed, are not seen.
"""

from components.storage.store import ArtifactStore

FINGERPRINT_DIGITS = 12
"""Digits of the fingerprint in the store's keys."""


def count_holdout_uses(store: ArtifactStore, fingerprint: str) -> int:
    """Sets of completions that were generated for a holdout, those of base models included.

    Args:
        store: the artifact store.
        fingerprint: the holdout's fingerprint, at least its first 12 digits.
    """
    keys = store.keys(f"evaluations/{fingerprint[:FINGERPRINT_DIGITS]}")
    return len({key.rpartition("/")[2].partition("-")[0] for key in keys})
