"""Whether MLflow's SQLite file holds a run and its version already, asked without importing mlflow.

Called by register_model before anything else: a run that changed nothing is then done in a moment, where the import of
mlflow takes longer than all other steps together. Reads four tables, writes none. In any doubt (a server, another
schema, a locked file) the answer is None, and MLflow itself is asked.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from components.tracking.registry import WEIGHTS_TAG

_QUERY = """
select version.version
from model_versions as version
join model_version_tags as weights
  on weights.name = version.name and weights.version = version.version and weights.key = ? and weights.value = ?
join runs as run on run.run_uuid = version.run_id and run.status = 'FINISHED' and run.lifecycle_stage = 'active'
join tags as mark on mark.run_uuid = run.run_uuid and mark.key = ? and mark.value = ?
where version.name = ? and version.run_id = ? and version.status = 'READY'
  and version.current_stage <> 'Deleted_Internal'
order by version.version desc limit 1
"""


def recorded_version(uri: str, *, run_id: str, mark: tuple[str, str], name: str, digest: str) -> str | None:
    """The version made of these weights of a finished run that bears a mark.

    Args:
        uri: the tracking URI.
        run_id: the MLflow run.
        mark: name and value of the run's tag that says what was recorded.
        name: the registered model.
        digest: sha256 of the weights' manifest.

    Returns:
        The version, such as "3"; None when there is none, or this cannot be told here.
    """
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1.0)) as database:
            found = database.execute(_QUERY, (WEIGHTS_TAG, digest, *mark, name, run_id)).fetchone()
    except sqlite3.Error:
        return None  # MLflow itself is asked next, and says what is wrong
    return str(found[0]) if found else None
