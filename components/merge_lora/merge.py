"""Folds a trained adapter into its base model, checks that the result is what was trained, and stores it.

Called by `component.py`, tests and notebooks through `merge_lora`. The weights stream (see `streaming`), so the merge
itself needs little memory; the comparison with the adapter runs in a second process and loads one model at a time (see
`verify`). A whole fine-tuned model in place of an adapter goes through the same checks.
Refuses: an adapter of another base model or of none that is recorded, quantised bases, adapters with parts it does not
understand, and a result that is not finite, unchanged, or apart from what was trained.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from components.contract import Contract
from components.errors import BadInputError, GateFailedError, PipelineError
from components.merge_lora.carrying import carry_files, write_config
from components.merge_lora.config import MergeConfig
from components.merge_lora.judging import find_failures, find_warnings, tolerance_for, weight_failures
from components.merge_lora.streaming import write_merged
from components.merge_lora.template import Opening, read_templates
from components.sections import content_hash
from components.storage.references import Reference
from components.storage.store import ArtifactStore

log = logging.getLogger(__name__)

REPORT = "merge_report.json"
PROBES = (
    "A baker has 12 rolls and sells 5. How many rolls are left?",
    "What is 17 + 26?",
    "Tom reads 4 pages a day for 9 days, then 6 more. How many pages does he read?",
    "Name the largest planet and say why it is called so.",
    "If x + 3 = 10, what is x?",
    "Write one sentence about the sea.",
    "A train leaves at 9:40 and arrives at 11:15. How long does it travel?",
    "Is 91 a prime number?",
)
"""Questions on which trained and merged model are compared; merge.probes says how many."""

Verifier = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class MergedModel:
    """The stored result.

    Attributes:
        reference: the merged model in the store.
        report: what merge_report.json says.
    """

    reference: Reference
    report: dict[str, Any]


def merge_lora(
    base_directory: Path,
    adapter_directory: Path,
    contract: Contract,
    merge: MergeConfig,
    store: ArtifactStore,
    *,
    work: Path,
    base_digest: str,
    adapter_digest: str,
) -> MergedModel:
    """Merge, verify and store; the same merge again is found in the store.

    Args:
        base_directory: the pinned base model, safetensors.
        adapter_directory: what training wrote: a PEFT adapter, or a whole model.
        contract: says which messages open a conversation.
        merge: the config section.
        store: where the merged model goes, below `merged/`.
        work: scratch directory with room for the merged model; `merged`, `verify.log` and two JSON files in it are
            overwritten.
        base_digest: digest of the base model's manifest, 64 hex digits.
        adapter_digest: digest of the adapter's manifest, 64 hex digits.

    Returns:
        The reference to the merged model and its report.

    Raises:
        BadInputError: when base and adapter don't belong together or hold what can't be merged.
        GateFailedError: when the merged model is not what was trained; nothing is stored.
        PipelineError: when it can't be written or loaded.
    """
    check_base(adapter_directory, base_digest)
    asked = [contract.messages(question) for question in PROBES]
    opening = Opening.of(asked[0], PROBES[0]) if merge.default_system_prompt else Opening()
    versions = {name: version(name) for name in ("torch", "transformers", "peft")}
    key = f"merged/{content_hash(base_digest, adapter_digest, merge.to_json(), asked, versions, _code_fingerprint())}"
    stored = store.find(key)
    if stored is not None:
        log.info("merged before: %s", stored)
        return MergedModel(reference=stored, report=store.read_manifest(stored).provenance["report"])

    out = work / "merged"
    shutil.rmtree(out, ignore_errors=True)
    with _verifier(work) as verifier:
        written = write_merged(base_directory, adapter_directory, merge, out)
        _refuse_on(weight_failures(written))
        write_config(base_directory, out, dtype=merge.dtype, untied=bool(written.untied))
        files = carry_files(base_directory, out, opening)
        measured = verifier(
            {
                "base": str(base_directory),
                "trained": str(adapter_directory),
                "merged": str(out),
                "is_adapter": written.is_adapter,
                "probes": asked[: merge.probes],
                "asked": {"question": PROBES[0], "messages": asked[0]},
                "extended": bool(opening),
                "templates": read_templates(base_directory),
                "targets": written.targets,
                "probe_tokens": merge.probe_tokens,
                "dtype": "float32" if merge.check_dtype == "float32" else None,
                "device": merge.check_device,
            }
        )
    report: dict[str, Any] = {
        "base_digest": base_digest,
        "adapter_digest": adapter_digest,
        "settings": merge.model_dump(mode="json"),
        "tolerance": tolerance_for(written.dtype, merge),
        "weights": {key: value for key, value in asdict(written).items() if key != "targets"},
        "opening": asdict(opening),
        "files": files,
        "measured": measured,
        "warnings": find_warnings(written, measured),
        "versions": versions,
    }
    _refuse_on(find_failures(written, measured, merge))
    for warning in report["warnings"]:
        log.warning("%s", warning)
    (out / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    # Through JSON once, so that a report read back from the store equals the one returned now.
    report = json.loads(json.dumps(report))
    provenance = {"base_digest": base_digest, "adapter_digest": adapter_digest, "report": report}
    reference = store.put(out, key, provenance=provenance)
    shutil.rmtree(out)
    return MergedModel(reference=reference, report=report)


def check_base(adapter_directory: Path, base_digest: str) -> None:
    """Refuse an adapter that was trained on another base model, or on nobody knows which.

    Args:
        adapter_directory: as the store fetched it: its manifest.json says which base it was trained on, and so may
            its training.json.
        base_digest: digest of the base model's manifest, 64 hex digits.

    Raises:
        BadInputError: when the recorded digest differs, or none is recorded.
    """
    recorded: dict[Path, str] = {}
    for name, section in (("manifest.json", "provenance"), ("training.json", "settings")):
        path = adapter_directory / name
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8")).get(section) or {}
            base = record.get("base")
            if isinstance(base, str):
                recorded[path] = base.rpartition("@sha256:")[2]
    if not recorded:
        raise BadInputError(
            f"{adapter_directory} does not say which base model it was trained on (base in the provenance of its "
            "manifest.json); merge what train_grpo stored"
        )
    for path, digest in recorded.items():
        if digest != base_digest:
            raise BadInputError(
                f"{path}: the adapter was trained on base model {digest[:12]} and is to be merged into "
                f"{base_digest[:12]}; merge it into the one it was trained on"
            )


def _refuse_on(failures: list[str]) -> None:
    if failures:
        raise GateFailedError(f"the merged model is not what was trained, nothing was stored: {'; '.join(failures)}")


@cache
def _code_fingerprint() -> str:
    """Sha256 of this folder's code: a model merged by other code is not found in its place."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


@contextmanager
def _verifier(work: Path) -> Iterator[Verifier]:
    """Start the measuring process, whose imports run beside the merge; yields a function that asks it once."""
    work.mkdir(parents=True, exist_ok=True)
    log_path, request_path, answer_path = (work / name for name in ("verify.log", "request.json", "measured.json"))
    answer_path.unlink(missing_ok=True)
    search_path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
    with (
        log_path.open("wb") as log_file,
        subprocess.Popen(
            [sys.executable, "-m", "components.merge_lora.verify"],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))},
        ) as process,
    ):

        def ask(request: Mapping[str, Any]) -> dict[str, Any]:
            request_path.write_text(json.dumps(request), encoding="utf-8")
            process.communicate(f"{request_path}\n".encode())
            if process.returncode or not answer_path.exists():
                tail = log_path.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
                raise PipelineError(
                    f"the merged model could not be loaded and compared (exit code {process.returncode}; -9 means out "
                    f"of memory: set merge.check_dtype: written or give the step more memory):\n{tail}"
                )
            measured: dict[str, Any] = json.loads(answer_path.read_text(encoding="utf-8"))
            return measured

        try:
            yield ask
        finally:
            if process.poll() is None:
                process.kill()
