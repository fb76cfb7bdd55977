"""Which questions are asked: the holdout's rows, and the further sets of `evaluation.also`.

Called by evaluate_holdout. Refuses a holdout without rows or report, and further sets without the two columns. Rows are
kept in memory: a holdout is thousands of rows, not millions.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from components.contract import Contract
from components.errors import BadInputError
from components.evaluate_holdout.config import AlsoConfig
from components.storage.store import fetch

HOLDOUT = "holdout"


@dataclass(frozen=True)
class QuestionSet:
    """Questions to evaluate on.

    Attributes:
        name: `holdout`, or the name of a further set.
        rows: at least id, prompt (chat messages), answer; in order.
        fingerprint: sha256 of the file the rows come from, or of the whole holdout.
    """

    name: str
    rows: list[dict[str, Any]]
    fingerprint: str


def read_holdout(directory: Path, limit: int | None) -> QuestionSet:
    """The holdout's rows.

    Args:
        directory: the holdout artifact.
        limit: rows at most.

    Raises:
        BadInputError: the directory is no holdout.
    """
    path = directory / "holdout.parquet"
    if not path.exists():
        raise BadInputError(f"{directory} holds no holdout.parquet; give the holdout that prepare_dataset wrote")
    rows = parquet.read_table(path).to_pylist()
    if not rows:
        raise BadInputError(f"{path} has no rows: there is nothing to evaluate on")
    missing = {"id", "prompt", "answer"} - set(rows[0])
    if missing:
        raise BadInputError(f"{path} lacks the column {sorted(missing)[0]!r}; prepare the dataset again")
    return QuestionSet(HOLDOUT, choose_rows(rows, limit), _fingerprint(directory, rows))


def read_also(also: AlsoConfig, holdout: QuestionSet, contract: Contract, cache: Path) -> QuestionSet:
    """A further set, put as its section says.

    Args:
        also: the section.
        holdout: whose questions are asked when the section names no file.
        contract: gives the system prompt.
        cache: where referenced artifacts are fetched to.

    Raises:
        BadInputError: the file is missing, has another format, or a row lacks question or answer.
    """
    rows: Sequence[Mapping[str, Any]] = holdout.rows
    fingerprint = holdout.fingerprint
    if also.path is not None:
        path = _find_file(also, cache)
        rows = _read_file(path)
        fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
    asked = []
    for number, row in enumerate(rows, start=1):
        question, answer = row.get("question"), row.get("answer")
        if not question or answer is None:
            raise BadInputError(f"evaluation.also {also.name}: row {number} has no question or no answer; give both")
        text = also.template.replace("{question}", str(question))
        prompt = contract.messages(text) if also.system_prompt else [{"role": "user", "content": text}]
        identity = row.get("id") or hashlib.sha256(json.dumps([question, str(answer)]).encode()).hexdigest()[:32]
        asked.append({**row, "id": identity, "question": text, "answer": str(answer), "prompt": prompt})
    return QuestionSet(also.name, choose_rows(asked, also.limit), fingerprint)


def choose_rows(rows: list[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """At most `limit` rows in their order: those whose id has the smallest hash, so always the same.

    Args:
        rows: have an `id`.
        limit: rows at most; None keeps all.
    """
    if limit is None or limit >= len(rows):
        return rows
    ranked = sorted(range(len(rows)), key=lambda index: hashlib.sha256(str(rows[index]["id"]).encode()).digest())
    return [rows[index] for index in sorted(ranked[:limit])]


def _fingerprint(directory: Path, rows: list[dict[str, Any]]) -> str:
    """What prepare_dataset called this holdout, or a hash of its rows where no report says."""
    report = directory / "report.json"
    if report.exists():
        stated = json.loads(report.read_text(encoding="utf-8"))
        fingerprint = stated.get("identity", {}).get("fingerprint") or stated.get("fingerprint")
        if fingerprint:
            return str(fingerprint)
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()


def _find_file(also: AlsoConfig, cache: Path) -> Path:
    assert also.path is not None
    if "://" not in also.path:
        path = Path(also.path)
        if not path.is_file():
            raise BadInputError(f"evaluation.also {also.name}: {path} does not exist here")
        return path
    directory = fetch(also.path, cache)
    files = sorted(path for path in directory.rglob("*") if path.suffix in {".jsonl", ".parquet"})
    if len(files) != 1:
        raise BadInputError(
            f"evaluation.also {also.name}: {also.path} holds {len(files)} .jsonl or .parquet files; it needs one"
        )
    return files[0]


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    elif path.suffix == ".jsonl":
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadInputError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise BadInputError(f"{path}, line {number} is no JSON object; write question and answer")
            rows.append(row)
    else:
        raise BadInputError(f"{path} is neither .jsonl nor .parquet; convert it")
    if not rows:
        raise BadInputError(f"{path} has no rows")
    return rows
