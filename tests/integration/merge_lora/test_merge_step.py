"""The whole step on tiny models: merged, verified in a second process, stored, found again; or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.contract import default_contract
from components.errors import BadInputError, GateFailedError, PipelineError
from components.merge_lora import merge as merge_module
from components.merge_lora.config import MergeConfig
from components.merge_lora.merge import MergedModel, merge_lora
from components.storage.references import Reference
from components.storage.store import ArtifactStore, open_store

pytestmark = pytest.mark.slow
LINEAR = ["q_proj", "v_proj", "o_proj", "down_proj"]


class Step:
    """A store with a base model in it, and the step on adapters of it."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root = root
        self.base_directory = base
        self.store: ArtifactStore = open_store(str(root / "store"))
        self.base = self.store.put(base, "models/base", provenance={})

    def merge(
        self, trained: Path, *, base: Reference | None = None, contract: Any = None, **settings: Any
    ) -> MergedModel:
        reference = self.store.put(
            trained, f"training/{trained.name}/adapter", provenance={"base": str(base or self.base)}
        )
        return merge_lora(
            self.store.fetch(self.base, self.root),
            self.store.fetch(reference, self.root),
            contract or default_contract(),
            MergeConfig(**{"probes": 2, "probe_tokens": 8} | settings),
            self.store,
            work=self.root / "work",
            base_digest=self.base.digest,
            adapter_digest=reference.digest,
        )


@pytest.fixture
def step(tmp_path: Path, bases: Callable[..., Path]) -> Step:
    return Step(tmp_path, bases("llama"))


def test_merged_model_is_verified_stored_and_found_again(step: Step, save_adapter: Callable[..., Path]) -> None:
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)

    merged = step.merge(adapter)

    directory = step.store.fetch(merged.reference, step.root)
    assert json.loads((directory / "merge_report.json").read_text()) == merged.report
    measured = merged.report["measured"]
    assert measured["weights"]["equal"] == 8
    assert measured["logits"]["rms"] < 1e-5
    assert measured["effect"]["rms"] > 0.01
    assert [probe["agree"] for probe in measured["greedy"]] == [probe["tokens"] for probe in measured["greedy"]]
    assert {check["case"] for check in measured["template"]} >= {"brings none", "switches the default off"}
    assert all(check["same"] for check in measured["template"])
    assert set(merged.report["files"]["changed"]) == {"chat_template.jinja"}
    assert {"tokenizer.json", "generation_config.json", "config.json"} <= set(merged.report["files"]["carried"])
    assert merged.report["warnings"] == []
    manifest = step.store.read_manifest(merged.reference)
    assert manifest.provenance["base_digest"] == step.base.digest
    assert not (step.root / "work" / "merged").exists()

    # A client that knows nothing of the training gets the trained prompt.
    tokenizer = AutoTokenizer.from_pretrained(directory)
    user = [{"role": "user", "content": "2 + 2?"}]
    asked = default_contract().messages("2 + 2?")
    assert tokenizer.apply_chat_template(user, tokenize=False) == tokenizer.apply_chat_template(asked, tokenize=False)
    assert "tiny model" in tokenizer.apply_chat_template(user, tokenize=False, default_system=False)

    def no_second_merge(*arguments: Any, **options: Any) -> None:
        raise AssertionError("merged again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_module, "write_merged", no_second_merge)
        again = step.merge(adapter)
    assert again == merged


def test_bfloat16_merge_passes_within_its_bound(step: Step, save_adapter: Callable[..., Path]) -> None:
    merged = step.merge(save_adapter(step.base_directory, target_modules=LINEAR), dtype="bfloat16")
    directory = step.store.fetch(merged.reference, step.root)
    assert AutoModelForCausalLM.from_pretrained(directory).dtype == torch.bfloat16
    assert merged.report["measured"]["weights"]["equal"] == 8
    assert 1e-5 < merged.report["measured"]["logits"]["rms"] < 0.1


def test_whole_fine_tuned_model_passes_the_same_checks(step: Step, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(step.base_directory)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    trained = tmp_path / "trained"
    model.save_pretrained(trained)

    merged = step.merge(trained)

    directory = step.store.fetch(merged.reference, step.root)
    expected = load_file(trained / "model.safetensors")
    given = load_file(directory / "model.safetensors")
    assert set(given) == set(expected)
    assert all(torch.equal(given[name], expected[name]) for name in expected)
    assert merged.report["measured"]["logits"]["rms"] < 1e-6
    assert "weights" not in merged.report["measured"]


def change(adapter: Path, key_part: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({key: function(value) if key_part in key else value for key, value in load_file(path).items()}, path)


def test_untrained_adapter_is_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)
    change(adapter, "lora_B", torch.zeros_like)
    with pytest.raises(GateFailedError, match="training changed nothing"):
        step.merge(adapter)
    assert step.store.keys("merged") == []


def test_adapter_with_alpha_zero_is_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    with pytest.raises(GateFailedError, match="training changed nothing"):
        step.merge(save_adapter(step.base_directory, target_modules=LINEAR, lora_alpha=0))


def test_diverged_adapter_is_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)
    change(adapter, "layers.1.self_attn.v_proj.lora_A", lambda value: value * float("nan"))
    with pytest.raises(GateFailedError, match=r"1 tensors hold NaN or infinity, first .*layers\.1\.self_attn\.v_proj"):
        step.merge(adapter)


def test_values_too_large_for_float16_are_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)
    change(adapter, "lora_B", lambda value: value * 1e6)
    with pytest.raises(GateFailedError, match="do not fit float16"):
        step.merge(adapter, dtype="float16")


def test_update_below_the_written_precision_is_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)
    change(adapter, "lora_B", lambda value: value * 1e-12)
    with pytest.raises(GateFailedError, match="vanished when rounded to float32"):
        step.merge(adapter)


def test_adapter_of_another_base_is_refused(step: Step, save_adapter: Callable[..., Path]) -> None:
    other = Reference(uri=step.base.uri, digest="0" * 64)
    with pytest.raises(BadInputError, match="trained on base model 000000000000"):
        step.merge(save_adapter(step.base_directory, target_modules=LINEAR), base=other)


def test_whole_model_of_another_size_is_refused(step: Step, bases: Callable[..., Path]) -> None:
    with pytest.raises(BadInputError, match="they are different models"):
        step.merge(bases("gpt2"))


@pytest.mark.parametrize("wrong", ["scaled", "one layer left out", "other tokenizer"])
def test_wrong_merge_is_noticed(
    wrong: str, step: Step, save_adapter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself is checked: what was written is spoilt between merge and verification."""
    adapter = save_adapter(step.base_directory, target_modules=LINEAR)
    carry = merge_module.carry_files

    def carry_and_spoil(base: Path, out: Path, opening: Any) -> dict[str, Any]:
        report = carry(base, out, opening)
        weights, before = load_file(out / "model.safetensors"), load_file(base / "model.safetensors")
        name = "model.layers.1.self_attn.v_proj.weight"
        if wrong == "scaled":
            weights = {key: before[key] + (value - before[key]) * 1.01 for key, value in weights.items()}
        elif wrong == "one layer left out":
            weights[name] = before[name]
        else:
            text = (out / "tokenizer.json").read_text().replace('"A":', '"swapped":').replace('"B":', '"A":')
            (out / "tokenizer.json").write_text(text.replace('"swapped":', '"B":'))
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        return report

    monkeypatch.setattr(merge_module, "carry_files", carry_and_spoil)
    expected = "tokenizer" if wrong == "other tokenizer" else "differs from peft's own merge.*logits"
    with pytest.raises(GateFailedError, match=expected):
        step.merge(adapter)
    assert step.store.keys("merged") == []


def test_model_that_does_not_load_is_an_error_with_the_reason(
    step: Step, save_adapter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry = merge_module.carry_files

    def carry_and_break(base: Path, out: Path, opening: Any) -> dict[str, Any]:
        report = carry(base, out, opening)
        (out / "config.json").write_text('{"model_type": "of tomorrow"}')
        return report

    monkeypatch.setattr(merge_module, "carry_files", carry_and_break)
    with pytest.raises(PipelineError, match="of tomorrow"):
        step.merge(save_adapter(step.base_directory, target_modules=LINEAR))
