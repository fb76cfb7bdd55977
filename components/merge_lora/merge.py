"""Folds a trained adapter into its base model, checks that the result is what was trained, and stores it.

Called by `component.py`, tests and notebooks through `merge_lora`. Weights stream tensor by tensor (see `weights`),
so the merge itself needs memory for one tensor and its update; the comparison with the adapter loads one model at a
time in a second process. A whole fine-tuned model in place of an adapter goes through the same checks.
Refuses: an adapter of another base model, quantised bases, adapters with parts it does not understand, a result that
is not finite, unchanged, or apart from what was trained.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from components.errors import BadInputError, GateFailedError, PipelineError
from components.merge_lora.adapter import CONFIG, AdapterPlan, Edit, apply_edit, is_tied, plan_edits
from components.merge_lora.config import DEFAULT_TOLERANCES, MergeConfig
from components.merge_lora.template import extend_template, read_templates, write_templates
from components.merge_lora.weights import CheckpointWriter, Planned, Tensor, read_checkpoint
from components.sections import content_hash
from components.steps import report_progress
from components.storage.references import Reference

log = logging.getLogger(__name__)

STEP = "merge_lora"
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
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"})
NOT_CARRIED = frozenset({"manifest.json", "README.md", REPORT})
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Contract(Protocol):
    """What the merge asks of the task contract."""

    def messages(self, question: str) -> list[dict[str, str]]:
        """The conversation that asks a question, its last message the user's."""


class Store(Protocol):
    """What the merge asks of the artifact store."""

    def put(self, directory: Path, key: str, *, provenance: Mapping[str, Any]) -> Reference:
        """Store a directory."""


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
    store: Store,
    *,
    work: Path,
    base_digest: str,
    adapter_digest: str,
) -> MergedModel:
    """Merge, verify and store.

    Args:
        base_directory: the pinned base model, safetensors.
        adapter_directory: what training wrote: a PEFT adapter, or a whole model.
        contract: says which messages open a conversation.
        merge: the config section.
        store: where the merged model goes, below `merged/`.
        work: an empty or absent scratch directory with room for the merged model.
        base_digest: digest of the base model's manifest.
        adapter_digest: digest of the adapter's manifest.

    Returns:
        The reference to the merged model and its report.

    Raises:
        BadInputError: when base and adapter don't belong together or hold what can't be merged.
        GateFailedError: when the merged model is not what was trained.
        PipelineError: when it can't be written or loaded.
    """
    check_base(adapter_directory, base_digest)
    with _verifier(work) as verifier:
        out = work / "merged"
        written = write_merged(base_directory, adapter_directory, merge, out)
        opening = contract.messages(PROBES[0])[:-1] if merge.default_system_prompt else []
        carried = carry_files(base_directory, out, opening)
        _write_config(base_directory, out, merge, written)
        measured = verifier(
            {
                "base": str(base_directory),
                "trained": str(adapter_directory),
                "merged": str(out),
                "is_adapter": written.is_adapter,
                "probes": [contract.messages(question) for question in PROBES[: merge.probes]],
                "opening": opening,
                "templates": read_templates(base_directory),
                "targets": written.compared,
                "probe_tokens": merge.probe_tokens,
                "dtype": "float32" if merge.check_dtype == "float32" else None,
                "device": merge.check_device,
            }
        )
    report = {
        "base_digest": base_digest,
        "adapter_digest": adapter_digest,
        "settings": merge.model_dump(mode="json"),
        "weights": written.summary,
        "opening": opening,
        "files": carried,
        "measured": measured,
        "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
    }
    failures = judge(written, measured, merge)
    report["failures"] = failures
    if failures:
        raise GateFailedError(
            "the merged model is not what was trained: " + "; ".join(failures) + f". Nothing was stored; see {out}"
        )
    (out / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    key = f"merged/{content_hash(base_digest, adapter_digest, merge.to_json(), opening)}"
    provenance = {
        "base_digest": base_digest,
        "adapter_digest": adapter_digest,
        "settings": merge.model_dump(mode="json"),
    }
    return MergedModel(reference=store.put(out, key, provenance=provenance), report=report)


def check_base(adapter_directory: Path, base_digest: str) -> None:
    """Refuse an adapter that was trained on another base model.

    Args:
        adapter_directory: holds `training.json` and, from the store, `manifest.json`.
        base_digest: digest of the base model's manifest, 64 hex digits.

    Raises:
        BadInputError: when the recorded digest differs.
    """
    for name in ("training.json", "manifest.json"):
        path = adapter_directory / name
        if not path.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        for recorded in _recorded_bases(content.get("provenance", content)):
            if recorded != base_digest:
                raise BadInputError(
                    f"{path}: the adapter was trained on the base model {recorded[:12]}… and is to be merged into "
                    f"{base_digest[:12]}…; merge it into the model it was trained on"
                )


def _recorded_bases(record: Mapping[str, Any]) -> Iterator[str]:
    for key in ("base_digest", "base_model_digest", "base", "base_model", "model"):
        value = record.get(key)
        if isinstance(value, str):
            digest = value.rpartition("@sha256:")[2]
            if len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
                yield digest


@dataclass(frozen=True)
class WrittenWeights:
    """What streaming the weights found.

    Attributes:
        is_adapter: an adapter was merged; otherwise a whole model was taken over.
        compared: module path -> tensor name of updates to compare with peft's.
        untied: heads that are no longer tied to the embedding.
        dtype: the dtype most of the weights are written in, such as `bfloat16`.
        summary: counts and norms for the report.
        not_finite: tensors with NaN or infinity.
    """

    is_adapter: bool
    compared: dict[str, str]
    untied: tuple[str, ...]
    dtype: str
    summary: dict[str, Any]
    not_finite: tuple[str, ...]


def write_merged(base_directory: Path, trained_directory: Path, merge: MergeConfig, out: Path) -> WrittenWeights:
    """Stream the merged weights into a directory.

    Args:
        base_directory: the base model.
        trained_directory: an adapter or a whole model.
        merge: dtype and shard size.
        out: created; weight files and index are written there.

    Returns:
        What was found on the way.

    Raises:
        BadInputError: when the two do not fit together.
        PipelineError: when the disk refuses.
    """
    config = _read_config(base_directory)
    base = read_checkpoint(base_directory)
    tied_head = "lm_head.weight"
    if is_tied(config, base) and tied_head in base:
        base = {name: tensor for name, tensor in base.items() if name != tied_head}
    is_adapter = (trained_directory / CONFIG).exists()
    plan = plan_edits(trained_directory, base, config) if is_adapter else _whole_model(trained_directory, base)
    out.mkdir(parents=True, exist_ok=True)
    shapes = [(name, base[name], base[name].shape) for name in base]
    shapes += [
        (name, base[str(plan.edits[name].source)], base[str(plan.edits[name].source)].shape) for name in plan.untied
    ]
    planned = [Planned(name, _written_dtype(source.dtype, merge.dtype), shape) for name, source, shape in shapes]
    sources = {name: source for name, source, _ in shapes}
    dtypes = {item.name: item.dtype for item in planned}
    writer = CheckpointWriter(out, planned, int(merge.max_shard_gib * (1 << 30)))
    found = _Findings()
    try:
        for done, name in enumerate(writer.order, start=1):
            writer.begin(name)
            edit = plan.edits.get(name)
            if edit is None:
                _copy(sources[name], dtypes[name], writer, found)
            else:
                _edit(name, edit, sources[name], dtypes[name], writer, found)
            report_progress(STEP, done, len(writer.order), unit="tensor")
        files = writer.close()
    except OSError as error:
        raise PipelineError(f"the merged weights could not be written to {out}: {error}; free space there") from error
    elements = {dtype: sum(item.size for item in planned if item.dtype == dtype) for dtype in set(dtypes.values())}
    dtype = str(max(elements, key=lambda dtype: elements[dtype])).removeprefix("torch.")
    compared = {} if plan.untied or is_tied(config, base) else dict(plan.targets)
    if is_tied(config, base):
        compared = {path: name for path, name in plan.targets.items() if name in base and not _is_embedding(name)}
    summary = {
        "files": files,
        "tensors": len(writer.order),
        "edited": len(plan.edits),
        "adapter_tensors": plan.keys,
        "dtype": dtype,
        "untied": list(plan.untied),
        "changed_elements": found.changed,
        "edited_elements": found.elements,
        "update_norm": found.update_square**0.5,
        "unchanged_tensors": found.unchanged,
    }
    return WrittenWeights(is_adapter, compared, plan.untied, dtype, summary, tuple(found.not_finite))


def _is_embedding(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "wte.weight"))


class _Findings:
    def __init__(self) -> None:
        self.not_finite: list[str] = []
        self.unchanged: list[str] = []
        self.changed = 0
        self.elements = 0
        self.update_square = 0.0


def _copy(source: Tensor, dtype: torch.dtype, writer: CheckpointWriter, found: _Findings) -> None:
    for chunk in source.chunks():
        values = chunk.to(dtype)
        if dtype.is_floating_point and not _is_finite(values) and source.name not in found.not_finite:
            found.not_finite.append(source.name)
        writer.write(values)


def _edit(
    name: str, edit: Edit, source: Tensor, dtype: torch.dtype, writer: CheckpointWriter, found: _Findings
) -> None:
    weight = source.read()
    merged, norm = apply_edit(edit, weight.clone() if weight.dtype == torch.float32 else weight)
    values = merged.to(dtype).contiguous()
    if not _is_finite(values):
        found.not_finite.append(name)
    changed = int(torch.count_nonzero(values != weight.to(dtype)))
    if not changed and edit != Edit(source=edit.source):
        found.unchanged.append(name)
    found.changed += changed
    found.elements += values.numel()
    found.update_square += norm**2
    writer.write(values)


def _is_finite(values: torch.Tensor) -> bool:
    # The sum of numbers with a NaN or an infinity is none; only a sum that overflows needs the slow look.
    return bool(torch.isfinite(values.sum(dtype=torch.float32))) or bool(torch.isfinite(values).all())


def _written_dtype(stored: torch.dtype, wanted: str) -> torch.dtype:
    return stored if wanted == "base" or not stored.is_floating_point else getattr(torch, wanted)


def _whole_model(trained: Path, base: Mapping[str, Tensor]) -> AdapterPlan:
    """A full fine-tune seen as an adapter that replaces every tensor."""
    tensors = read_checkpoint(trained)
    tensors = {name: tensor for name, tensor in tensors.items() if name in base or name != "lm_head.weight"}
    for name in sorted(set(base) ^ set(tensors)):
        where, other = ("base model", "trained model") if name in base else ("trained model", "base model")
        raise BadInputError(f"{trained}: {name} is in the {where} and not in the {other}; they are different models")
    for name, tensor in tensors.items():
        if tensor.shape != base[name].shape:
            raise BadInputError(f"{trained}: {name} has shape {tensor.shape} and the base's {base[name].shape}")
    edits = {name: Edit(replacement=tensor) for name, tensor in tensors.items()}
    return AdapterPlan(edits=edits, untied=(), keys=len(tensors))


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.exists():
        raise BadInputError(f"{directory} has no config.json; it is not a model directory")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config.get("quantization_config"):
        raise BadInputError(
            f"{path}: the base is stored quantised ({config['quantization_config'].get('quant_method')}); an adapter "
            "trained in 4 bit is merged into the 16-bit model: set model.source to that"
        )
    return config


def _write_config(base: Path, out: Path, merge: MergeConfig, written: WrittenWeights) -> None:
    """config.json with what the merge changed: the dtype, and that head and embedding are apart."""
    config = _read_config(base)
    for part in (config, config.get("text_config")):
        if not isinstance(part, dict):
            continue
        if merge.dtype != "base":
            named = [key for key in ("dtype", "torch_dtype") if key in part]
            for key in named or (["dtype"] if part is config else []):
                part[key] = merge.dtype
        if written.untied and ("tie_word_embeddings" in part or part is config):
            part["tie_word_embeddings"] = False
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    if config != _read_config(base):
        (out / "config.json").write_text(text, encoding="utf-8")


def carry_files(base: Path, out: Path, opening: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Copy everything but the weights, and give the chat templates their default system prompt.

    Args:
        base: the base model's directory.
        out: the merged model's.
        opening: messages to insert where a request brings no system message.

    Returns:
        For the report: sha256 by file, and which files were changed on the way.

    Raises:
        BadInputError: when there is a system prompt and no chat template to put it in.
    """
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_dir() or hidden or relative.as_posix() in NOT_CARRIED or _is_weight(path):
            continue
        (out / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / relative)
    templates = read_templates(base)
    if opening and not templates:
        raise BadInputError(
            f"{base} has no chat template to put the contract's system prompt in; give the base model one, or set "
            "merge.default_system_prompt: false"
        )
    if opening:
        write_templates(out, {name: extend_template(template, opening) for name, template in templates.items()})
    same: dict[str, str] = {}
    changed: dict[str, str] = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and not _is_weight(path):
            name = path.relative_to(out).as_posix()
            digest = _sha256(path)
            original = base / name
            (same if original.exists() and _sha256(original) == digest else changed)[name] = digest
    return {"carried": same, "changed": changed}


def _is_weight(path: Path) -> bool:
    return path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".index.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def judge(written: WrittenWeights, measured: Mapping[str, Any], merge: MergeConfig) -> list[str]:
    """What is wrong with a merged model, one sentence each; none when it is what was trained.

    Args:
        written: from `write_merged`.
        measured: from `verify.measure`.
        merge: the config section, for the tolerance.
    """
    failures = []
    tolerance = merge.tolerance or DEFAULT_TOLERANCES.get(written.dtype, DEFAULT_TOLERANCES["float32"])
    if written.not_finite:
        failures.append(
            f"{len(written.not_finite)} tensors hold NaN or infinity, first {written.not_finite[0]} "
            "(training diverged, or the values do not fit merge.dtype)"
        )
    summary = written.summary
    if not summary["changed_elements"]:
        if summary["update_norm"]:
            failures.append(
                f"an update of norm {summary['update_norm']:.3g} vanished when rounded to {written.dtype}; "
                "write float32 (merge.dtype) or train with a larger learning rate"
            )
        else:
            failures.append("the merged weights equal the base's, so training changed nothing")
    for kind in ("missing_keys", "unexpected_keys"):
        if measured["loading"][kind]:
            failures.append(f"loading it reports {kind}: {measured['loading'][kind][:3]}")
    weights = measured.get("weights")
    if weights is not None:
        if weights["equal"] + weights["apart"] != weights["expected"]:
            failures.append(f"peft found {weights['equal'] + weights['apart']} of {weights['expected']} adapted layers")
        if weights["largest"] > 2 * EPSILON.get(written.dtype, EPSILON["float32"]):
            failures.append(
                f"{weights['tensor']} differs from peft's merge by {weights['largest']:.2g} of its largest value"
            )
    logits = measured["logits"]
    if not logits["finite"]:
        failures.append("logits on the probe prompts are not finite")
    elif logits["rms"] > tolerance:
        failures.append(
            f"logits on the probe prompts differ by {logits['rms']:.3g} of their spread, more than the "
            f"{tolerance:g} allowed for {written.dtype} (merge.tolerance)"
        )
    for number, probe in enumerate(measured["greedy"], start=1):
        near_tie = probe["margin"] is not None and probe["margin"] <= 2 * tolerance
        if probe["agree"] < probe["tokens"] and not near_tie:
            failures.append(f"greedy tokens of probe {number} part after {probe['agree']} of {probe['tokens']}")
    for name, same in measured["tokenizer"].items():
        if same is False:
            failures.append(f"the tokenizer differs from the base's ({name})")
    for check in measured["template"]:
        if not check["same"]:
            failures.append(
                f"the chat template ({check['template']}) does not render as the base's when a request {check['case']}"
            )
    return failures


@contextmanager
def _verifier(work: Path) -> Iterator[Any]:
    """Start the measuring process, whose imports run beside the merge; yields a function that asks it."""
    work.mkdir(parents=True, exist_ok=True)
    log_path = work / "verify.log"
    root = Path(__file__).resolve().parents[2]
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "components.merge_lora.verify"],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))},
        )

        def ask(request: Mapping[str, Any]) -> dict[str, Any]:
            path = work / "request.json"
            answer = path.with_name("measured.json")
            answer.unlink(missing_ok=True)
            path.write_text(json.dumps(request), encoding="utf-8")
            process.communicate(f"{path}\n".encode())
            if process.returncode or not answer.exists():
                tail = log_path.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
                raise PipelineError(
                    f"the merged model could not be loaded and compared (exit code {process.returncode}; -9 means out "
                    f"of memory: set merge.check_dtype: written or give the step more memory):\n{tail}"
                )
            measured: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return measured

        try:
            yield ask
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
