"""The verdict: which comparisons are refused, what each gate says at its edges, and what the artifact holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from components.errors import BadInputError
from components.judge_candidate.config import GatesConfig
from components.judge_candidate.gates import Status, apply_gates, compare, overall
from components.judge_candidate.judge_candidate import Verdict, judge_candidate
from components.judge_candidate.pairs import Pairs, refuse_incomparable
from components.storage.store import ArtifactStore, open_store

SETTINGS = {
    "format": 1,
    "engine": "transformers",
    "version": "5.17.0",
    "dtype": "float32",
    "device": "cpu",
    "sampling": {"greedy": {"temperature": 0.0, "max_new_tokens": 64}},
    "contract_hash": "c" * 64,
    "holdout_fingerprint": "f" * 64,
    "limit": None,
    "prompts_hash": "p",
    "model_digest": "a" * 64,
}


def sample(row: int, *, strict: bool, right: bool, truncated: bool = False, index: int = 0) -> dict[str, Any]:
    return {
        "id": f"row-{row}",
        "set": "holdout",
        "decoding": "greedy",
        "sample": index,
        "question": f"question {row}",
        "prompt_text": f"user: question {row}",
        "completion": f"{'right' if right else 'wrong'} {row}",
        "strict": strict,
        "lenient": True,
        "reasons": [] if strict else ["missing_tag"],
        "answer_read_lenient": "1",
        "correct_strict": strict and right,
        "correct_lenient": right,
        "gold": "1",
        "tokens": 20,
        "truncated": truncated,
    }


def model(rows: int, *, strict: int, right: int, shift: int = 0, truncated: int = 0) -> list[dict[str, Any]]:
    """Samples of which the first `strict` are in the format and `right` from `shift` on are right."""
    return [
        sample(row, strict=row < strict, right=shift <= row < shift + right, truncated=row < truncated)
        for row in range(rows)
    ]


def pairs(base: list[dict[str, Any]], candidate: list[dict[str, Any]]) -> Pairs:
    return Pairs([row["id"] for row in base], [[row] for row in base], [[row] for row in candidate])


def write_evaluation(directory: Path, samples: list[dict[str, Any]], **settings: Any) -> Path:
    directory.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(samples), directory / "samples.parquet")
    (directory / "metrics.json").write_text("{}")
    (directory / "settings.json").write_text(json.dumps(SETTINGS | settings))
    return directory


def write_dataset(directory: Path, ids: list[str]) -> Path:
    directory.mkdir()
    parquet.write_table(pa.table({"id": ids}), directory / "train.parquet")
    return directory


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(str(tmp_path / "store"))


def status(result: list[Any], name: str) -> Status:
    return next(gate.status for gate in result if gate.name == name)


def sentence(result: list[Any], name: str) -> str:
    return next(gate.sentence for gate in result if gate.name == name)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("engine", "vllm", r'engine is "transformers" for the base and "vllm" for the candidate'),
        ("version", "5.18.0", 'version is "5.17.0" .* "5.18.0"'),
        ("dtype", "bfloat16", 'dtype is "float32" .* "bfloat16"'),
        ("contract_hash", "e" * 64, "contract_hash is"),
        ("holdout_fingerprint", "e" * 64, "holdout_fingerprint is"),
        ("limit", 32, "limit is absent for the base and 32 for the candidate"),
        ("sampling", {"greedy": {"temperature": 0.0, "max_new_tokens": 128}}, r"sampling\.greedy is .*64.*128"),
    ],
)
def test_evaluations_made_differently_are_refused_with_both_values(name: str, value: Any, shown: str) -> None:
    with pytest.raises(BadInputError, match=shown):
        refuse_incomparable(SETTINGS, SETTINGS | {name: value})


def test_evaluations_of_two_models_made_alike_are_compared() -> None:
    refuse_incomparable(SETTINGS, SETTINGS | {"model_digest": "b" * 64, "prompts_hash": "q"})


def test_a_better_candidate_passes_every_gate() -> None:
    result = apply_gates(
        pairs(model(500, strict=50, right=300), model(500, strict=480, right=310)), GatesConfig(), leaked=[]
    )
    assert overall(result) == Status.PASS
    assert "96.0% [93.9%, 97.4%]; at least 80.0% is asked for" in sentence(result, "min_format_compliance")
    assert "went from 60.0% to 62.0%, +2.0 points" in sentence(result, "accuracy_margin")


def test_a_gate_is_held_against_the_bound_and_not_the_estimate() -> None:
    # 81 of 100 is above 80 %, and its interval reaches below.
    result = apply_gates(
        pairs(model(100, strict=0, right=50), model(100, strict=81, right=50)), GatesConfig(), leaked=[]
    )
    gate = next(gate for gate in result if gate.name == "min_format_compliance")
    assert gate.value == pytest.approx(0.81)
    assert gate.status == Status.INCONCLUSIVE
    assert gate.rows_needed == 6200
    assert "about 6,200 rows in all would decide it" in gate.sentence


def test_form_bought_with_the_task_fails() -> None:
    result = apply_gates(
        pairs(model(500, strict=0, right=300), model(500, strict=500, right=200)), GatesConfig(), leaked=[]
    )
    assert status(result, "accuracy_margin") == Status.FAIL
    assert status(result, "min_accuracy_gain") == Status.PASS
    assert overall(result) == Status.FAIL
    assert "-20.0 points" in sentence(result, "accuracy_margin")


def test_an_unchanged_model_is_not_registered_as_an_improvement() -> None:
    same = model(1000, strict=950, right=600)
    result = apply_gates(pairs(same, same), GatesConfig(), leaked=[])
    assert status(result, "accuracy_margin") == Status.PASS
    assert status(result, "min_accuracy_gain") == Status.INCONCLUSIVE
    assert "too close to the bound" in sentence(result, "min_accuracy_gain")
    assert overall(result) == Status.INCONCLUSIVE


def test_many_truncated_completions_fail() -> None:
    result = apply_gates(
        pairs(model(500, strict=0, right=0), model(500, strict=480, right=200, truncated=120)), GatesConfig(), leaked=[]
    )
    assert status(result, "max_truncation") == Status.FAIL


def test_few_rows_are_inconclusive_however_good() -> None:
    result = apply_gates(pairs(model(60, strict=0, right=0), model(60, strict=60, right=60)), GatesConfig(), leaked=[])
    assert status(result, "min_rows") == Status.INCONCLUSIVE
    assert overall(result) == Status.INCONCLUSIVE


def test_a_gate_that_is_null_is_not_applied() -> None:
    gates = GatesConfig(min_accuracy_gain=None, max_truncation=None)
    names = [
        gate.name for gate in apply_gates(pairs(model(9, strict=0, right=0), model(9, strict=9, right=9)), gates, [])
    ]
    assert names == ["no_leakage", "min_rows", "min_format_compliance", "accuracy_margin"]


def test_several_completions_a_row_are_compared_row_by_row() -> None:
    generator = np.random.default_rng(0)
    many = Pairs(
        [str(row) for row in range(200)],
        [[sample(row, strict=True, right=bool(generator.random() < 0.3)) for _ in range(8)] for row in range(200)],
        [[sample(row, strict=True, right=bool(generator.random() < 0.6)) for _ in range(8)] for row in range(200)],
    )
    assert not many.single
    figure = compare(many, "correct_strict", 0.95)
    # 1.96 standard errors of the mean over 200 rows of 8 completions each: sqrt((0.3 * 0.7 + 0.6 * 0.4) / 8 / 200)
    assert figure.difference.value - figure.difference.low == pytest.approx(0.033, abs=0.006)
    assert figure.difference.high - figure.difference.value == pytest.approx(0.033, abs=0.006)
    assert figure.wins + figure.losses + figure.ties == 200
    result = apply_gates(many, GatesConfig(), leaked=[])
    assert overall(result) == Status.PASS


def judge(tmp_path: Path, store: ArtifactStore, *, train: list[str], candidate: list[dict[str, Any]]) -> Verdict:
    base = write_evaluation(tmp_path / "base", model(300, strict=20, right=150))
    other = write_evaluation(tmp_path / "candidate", candidate, model_digest="b" * 64)
    dataset = write_dataset(tmp_path / "dataset", train)
    return judge_candidate(base, other, GatesConfig(), store, dataset_directory=dataset, work=tmp_path / "work")


def test_the_artifact_holds_verdict_gates_differences_and_pairs(tmp_path: Path, store: ArtifactStore) -> None:
    judged = judge(tmp_path, store, train=["other"], candidate=model(300, strict=290, right=150, shift=10))
    assert judged.verdict == Status.PASS
    directory = store.fetch(judged.reference, tmp_path / "cache")
    verdict = json.loads((directory / "verdict.json").read_text())
    assert verdict["verdict"] == "pass"
    assert all(gate["sentence"].endswith(".") for gate in verdict["gates"])
    lenient = verdict["differences"]["accuracy_lenient"]
    assert (lenient["wins"], lenient["losses"], lenient["ties"]) == (10, 10, 280)
    assert lenient["mcnemar_p"] == 1
    rows = parquet.read_table(directory / "pairs.parquet").to_pylist()
    assert len(rows) == 300
    assert (rows[0]["outcome_lenient"], rows[155]["outcome_lenient"], rows[50]["outcome_lenient"]) == (
        "lost",
        "won",
        "tied",
    )
    assert rows[155]["candidate_completion"] == "right 155"


def test_the_same_evaluations_give_the_same_artifact(tmp_path: Path, store: ArtifactStore) -> None:
    first = judge(tmp_path / "one", store, train=["other"], candidate=model(300, strict=290, right=150))
    second = judge(tmp_path / "two", store, train=["other"], candidate=model(300, strict=290, right=150))
    assert first.reference == second.reference


def test_a_holdout_row_in_the_training_split_fails(tmp_path: Path, store: ArtifactStore) -> None:
    judged = judge(tmp_path, store, train=["other", "row-7"], candidate=model(300, strict=290, right=150))
    assert judged.verdict == Status.FAIL
    assert "1 holdout rows are in the training split (first: row-7)" in judged.gates[0].sentence


def test_rows_of_one_model_only_are_refused(tmp_path: Path, store: ArtifactStore) -> None:
    with pytest.raises(BadInputError, match=r"1 rows were evaluated for one model only \(first: row-299, base\)"):
        judge(tmp_path, store, train=[], candidate=model(299, strict=290, right=150))


def test_judging_samples_that_were_never_drawn_is_refused(tmp_path: Path, store: ArtifactStore) -> None:
    base = write_evaluation(tmp_path / "base", model(10, strict=0, right=0))
    with pytest.raises(BadInputError, match=r"no sampled completions of holdout; set evaluation\.samples"):
        judge_candidate(
            base, base, GatesConfig(decoding="sampled"), store, dataset_directory=None, work=tmp_path / "work"
        )


def test_templates_that_render_differently_are_noted(tmp_path: Path, store: ArtifactStore) -> None:
    base = write_evaluation(tmp_path / "base", model(10, strict=0, right=0))
    other = write_evaluation(tmp_path / "other", model(10, strict=9, right=0), prompts_hash="q")
    judged = judge_candidate(base, other, GatesConfig(), store, dataset_directory=None, work=tmp_path / "work")
    verdict = json.loads((store.fetch(judged.reference, tmp_path / "cache") / "verdict.json").read_text())
    assert any("chat templates" in note for note in verdict["notes"])


def test_a_section_without_any_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="every gate is null"):
        GatesConfig(min_format_compliance=None, accuracy_margin=None, min_accuracy_gain=None, max_truncation=None)
