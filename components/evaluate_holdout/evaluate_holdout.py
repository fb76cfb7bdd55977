"""Evaluates one model directory on the holdout: generates, reads, scores, measures, and stores the result.

Called by component.py for the base model and for the merged model, and by `grpo evaluate`. Prompts go through the
directory's own chat template and decoding follows its own generation config, as a server's would. The result's key
holds the model's digest, engine, version, dtype, decoding, contract and holdout, so that one base model on one holdout
generates once for all runs; rewards are in its second part, and other rewards score the same completions again.
Nothing here decides whether the model is good: that is judge_candidate's.
"""

import json
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from components.contract import Contract
from components.contract.tokenizer import load_tokenizer
from components.errors import BadInputError, PipelineError
from components.evaluate_holdout.config import EvaluationConfig
from components.evaluate_holdout.metrics import Metrics, measure
from components.evaluate_holdout.questions import QuestionSet, read_also, read_holdout
from components.evaluate_holdout.scoring import Sample, add_rewards, make_samples
from components.generation import EngineIdentity, Sampling, generation_defaults, identify, open_generator
from components.rewards.config import RewardsConfig
from components.sections import content_hash
from components.steps import report_progress
from components.storage.references import Reference
from components.storage.store import ArtifactStore

log = logging.getLogger("grpo")

STEP = "evaluate_holdout"
FORMAT = 1
"""Raised when the artifact's files or the meaning of a metric change, so that old ones are not taken for new."""

HEADLINE = ("format_compliance", "accuracy_strict", "accuracy_lenient", "truncation_rate")


@dataclass(frozen=True)
class Evaluation:
    """A stored evaluation.

    Attributes:
        reference: the artifact: samples.parquet, metrics.json, settings.json.
        metrics: name -> value, low, high, n.
        reused: it was there already.
    """

    reference: Reference
    metrics: Metrics
    reused: bool = False

    def headline(self) -> dict[str, float]:
        """The main figures."""
        return {name: float(self.metrics[name]["value"] or 0.0) for name in HEADLINE}


def evaluate_holdout(
    model_directory: Path,
    holdout_directory: Path,
    contract: Contract,
    evaluation: EvaluationConfig,
    rewards: RewardsConfig | None,
    store: ArtifactStore,
    *,
    work: Path,
    model_digest: str,
    code: str = "",
) -> Evaluation:
    """Evaluate a model on the holdout, or find that it was done before.

    Args:
        model_directory: Hugging Face directory of the model.
        holdout_directory: the holdout artifact.
        contract: reads answers and judges the format.
        evaluation: the config section.
        rewards: scored too unless None or `evaluation.rewards` is false.
        store: where the result goes, below `evaluations/<first 12 digits of the holdout's fingerprint>/`.
        work: local folder for files being made.
        model_digest: of the model's manifest.
        code: fingerprint of the step's code, part of the key.

    Raises:
        BadInputError: holdout, further sets, tokenizer or model do not fit the section; says which and how to mend it.
    """
    if not evaluation.rewards:
        rewards = None
    holdout = read_holdout(holdout_directory, evaluation.limit)
    if evaluation.slices is not None and evaluation.slices not in holdout.rows[0]:
        raise BadInputError(
            f"evaluation.slices is {evaluation.slices!r}, and the holdout has no such column; it has "
            f"{', '.join(sorted(holdout.rows[0]))} (data.columns.keep keeps further ones)"
        )
    sets = [holdout, *(read_also(also, holdout, contract, work / "cache") for also in evaluation.also)]
    identity = identify(evaluation.engine, dtype=evaluation.dtype, device=evaluation.device)
    decodings = _decodings(evaluation, generation_defaults(model_directory))
    generation = _generation_settings(identity, decodings, contract, evaluation, sets, model_digest, code)
    settings = generation | {
        "rewards": None if rewards is None else content_hash(rewards.model_dump(mode="json")),
        "slices": evaluation.slices,
    }
    prefix = f"evaluations/{holdout.fingerprint[:12]}"
    generated = content_hash(generation)[:24]
    key = f"{prefix}/{generated}-{content_hash(settings)[:24]}"
    found = _find(store, key, work)
    if found is not None:
        log.info("evaluated before: %s", found.reference)
        return found
    samples, facts = _completions_made_before(store, prefix, generated, work)
    if not samples:
        samples, facts = _generate(model_directory, sets, decodings, contract, evaluation)
    errors = {} if rewards is None else add_rewards(samples, rewards, contract, _scoring_progress)
    metrics = _measure_all(samples, sets, decodings, contract, evaluation)
    counts = {"tokens_per_second": facts["tokens_per_second"]}
    counts |= {f"reward_errors/{name}": float(count) for name, count in errors.items()}
    metrics |= {name: {"value": value, "low": None, "high": None, "n": len(samples)} for name, value in counts.items()}
    provenance = {
        "kind": "evaluation",
        "model": model_digest,
        "holdout_fingerprint": holdout.fingerprint,
        "contract_hash": contract.hash,
    }
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="evaluation-") as folder:
        _write(Path(folder), samples, metrics, settings | facts)
        try:
            reference = store.put(Path(folder), key, provenance=provenance)
        except PipelineError:
            # Another run evaluated the same at the same time and was first: its result stands.
            other = _find(store, key, work)
            if other is None:
                raise
            return other
    return Evaluation(reference, metrics)


def _decodings(evaluation: EvaluationConfig, defaults: dict[str, Any]) -> dict[str, Sampling]:
    """Greedy, and sampled where samples are asked for; what the section leaves open comes from the model."""
    greedy = Sampling(
        max_new_tokens=evaluation.max_new_tokens, repetition_penalty=evaluation.repetition_penalty
    ).resolved(defaults)
    if not evaluation.samples:
        return {"greedy": greedy}
    sampled = replace(
        greedy,
        temperature=evaluation.temperature or float(defaults.get("temperature") or 1.0),
        top_p=evaluation.top_p or float(defaults.get("top_p") or 1.0),
        top_k=evaluation.top_k,
        n=evaluation.samples,
        seed=evaluation.seed,
    ).resolved(defaults)
    return {"greedy": greedy, "sampled": sampled}


def _generation_settings(
    identity: EngineIdentity,
    decodings: dict[str, Sampling],
    contract: Contract,
    evaluation: EvaluationConfig,
    sets: Sequence[QuestionSet],
    model_digest: str,
    code: str,
) -> dict[str, Any]:
    """All that decides the completions and how they are read; the judge compares it."""
    return {
        "format": FORMAT,
        **asdict(identity),
        "sampling": {name: asdict(sampling) for name, sampling in decodings.items()},
        "contract_hash": contract.hash,
        "holdout_fingerprint": sets[0].fingerprint,
        "limit": evaluation.limit,
        "rows": len(sets[0].rows),
        "also": {
            questions.name: also.model_dump(exclude={"path"}) | {"fingerprint": questions.fingerprint}
            for questions, also in zip(sets[1:], evaluation.also, strict=True)
        },
        "seed": evaluation.seed,
        "model_digest": model_digest,
        "code": code,
    }


def _completions_made_before(
    store: ArtifactStore, prefix: str, generated: str, work: Path
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples of an evaluation that differs in its rewards or slices only; none when there is no such one."""
    for key in store.keys(prefix):
        if key.rpartition("/")[2].startswith(f"{generated}-"):
            reference = store.find(key)
            if reference is None:
                continue
            directory = store.fetch(reference, work / "cache")
            settings = json.loads((directory / "settings.json").read_text(encoding="utf-8"))
            samples = parquet.read_table(directory / "samples.parquet").to_pylist()
            log.info("completions taken from %s, scored again", reference)
            return (
                [{name: value for name, value in s.items() if not name.startswith("rewards.")} for s in samples],
                {name: settings[name] for name in ("prompts_hash", "tokens_per_second")},
            )
    return [], {}


def _find(store: ArtifactStore, key: str, work: Path) -> Evaluation | None:
    reference = store.find(key)
    if reference is None:
        return None
    directory = store.fetch(reference, work / "cache")
    metrics = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    return Evaluation(reference, metrics, reused=True)


def _generate(
    model_directory: Path,
    sets: Sequence[QuestionSet],
    decodings: dict[str, Sampling],
    contract: Contract,
    evaluation: EvaluationConfig,
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples of all sets and decodings, and what is worth knowing of how they were made."""
    tokenizer = load_tokenizer(model_directory, contract)
    rendered = {questions.name: [contract.render(tokenizer, row) for row in questions.rows] for questions in sets}
    samples: list[Sample] = []
    tokens, seconds = 0, 0.0
    with open_generator(
        model_directory,
        evaluation.engine,
        dtype=evaluation.dtype,
        device=evaluation.device,
        batch_size=evaluation.batch_size,
    ) as generator:
        for questions in sets:
            for decoding, sampling in decodings.items():
                started = time.perf_counter()
                answers = generator.generate(rendered[questions.name], sampling, _progress)
                seconds += time.perf_counter() - started
                tokens += sum(completion.tokens for group in answers for completion in group)
                samples += make_samples(questions, rendered[questions.name], answers, contract, decoding)
    facts = {"prompts_hash": content_hash(rendered), "tokens_per_second": tokens / seconds if seconds else 0.0}
    return samples, facts


def _progress(done: int, total: int) -> None:
    report_progress(STEP, done, total, unit="completion")


def _scoring_progress(done: int, total: int) -> None:
    report_progress(STEP, done, total, unit="score")


def _measure_all(
    samples: Sequence[Sample],
    sets: Sequence[QuestionSet],
    decodings: dict[str, Sampling],
    contract: Contract,
    evaluation: EvaluationConfig,
) -> Metrics:
    """Metrics of every set and decoding; the holdout's greedy ones under plain names."""
    metrics: Metrics = {}
    for questions in sets:
        for decoding in decodings:
            chosen = [s for s in samples if s["set"] == questions.name and s["decoding"] == decoding]
            first = questions is sets[0]
            prefix = "" if first else f"also/{questions.name}/"
            prefix += "" if decoding == "greedy" else "sampled/"
            slices = evaluation.slices if first else None
            for name, figure in measure(chosen, contract, seed=evaluation.seed, slices=slices).items():
                metrics[prefix + name] = figure
    return metrics


def _write(folder: Path, samples: Sequence[Sample], metrics: Metrics, settings: dict[str, Any]) -> None:
    """The artifact's files."""
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    try:
        table = pa.Table.from_pylist([{name: sample.get(name) for name in names} for sample in samples])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadInputError(f"evaluation.also: columns of two sets have one name and other types: {error}") from error
    parquet.write_table(table, folder / "samples.parquet", compression="zstd")
    for name, content in (("metrics", metrics), ("settings", settings)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
