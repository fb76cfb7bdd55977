"""Adapters that are refused, each by the name of what is wrong, and sums done by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from components.errors import BadInputError
from components.merge_lora.adapter import apply_edit, plan_edits
from components.merge_lora.weights import read_checkpoint, read_header

Q = "model.layers.0.self_attn.q_proj"
UP = "model.layers.0.mlp.up_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    torch.manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(9, 4),
        f"{Q}.weight": torch.randn(4, 4),
        f"{Q}.bias": torch.randn(4),
        f"{UP}.weight": torch.randn(6, 4),
        "lm_head.weight": torch.randn(9, 4),
    }
    save_file(tensors, directory / "model.safetensors")
    return directory


def plan(
    base: Path, tensors: dict[str, torch.Tensor], model: dict[str, Any] | None = None, **config: Any
) -> dict[str, Any]:
    adapter = base.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(
        {f"base_model.model.{key}": value for key, value in tensors.items()}, adapter / "adapter_model.safetensors"
    )
    model_config = {"model_type": "llama", "tie_word_embeddings": False} | (model or {})
    return plan_edits(adapter, read_checkpoint(base), model_config).edits


def lora(module: str = Q, rank: int = 2, inputs: int = 4, outputs: int = 4) -> dict[str, torch.Tensor]:
    return {
        f"{module}.lora_A.weight": torch.ones(rank, inputs),
        f"{module}.lora_B.weight": torch.ones(outputs, rank),
    }


def test_update_is_the_scaled_product(base: Path) -> None:
    tensors = {
        f"{UP}.lora_A.weight": torch.tensor([[1.0, 0, 0, 0], [0, 2, 0, 0]]),
        f"{UP}.lora_B.weight": torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0], [0, 0], [1, 1]]),
    }
    edits = plan(base, tensors)
    weight = read_checkpoint(base)[f"{UP}.weight"].read()
    merged, squared_norm = apply_edit(edits[f"{UP}.weight"], weight)
    expected = torch.zeros(6, 4)
    expected[0, 0], expected[1, 1], expected[5, 0], expected[5, 1] = 3, 6, 3, 6
    assert torch.equal(merged, weight + expected)
    assert squared_norm == pytest.approx(9 + 36 + 9 + 36)


def test_square_weight_is_transposed_only_where_the_model_stores_it_so(base: Path) -> None:
    edits = plan(base, lora(), model={"model_type": "gpt2"})
    assert edits[f"{Q}.weight"].low_rank.transposed
    (base.parent / "adapter").rename(base.parent / "first")
    assert not plan(base, lora(), fan_in_fan_out=True)[f"{Q}.weight"].low_rank.transposed


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 4}}, 2.0),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 4}}, 3.0),
        ({"alpha_pattern": {r"layers\.\d+\.self_attn\.q_proj": 1}}, 0.5),
        ({"r": 8, "rank_pattern": {"q_proj": 2}}, 3.0),
    ],
)
def test_scaling_follows_alpha_rank_and_their_patterns(config: dict[str, Any], expected: float, base: Path) -> None:
    assert plan(base, lora(), **config)[f"{Q}.weight"].low_rank.scaling == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa"}, "pissa.*changes the base weights before"),
        ({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}, "loftq"),
        ({"init_lora_weights": "mica"}, "mica"),
        ({"init_lora_weights": "start_of_tomorrow"}, "start_of_tomorrow"),
        ({"target_parameters": ["mlp.experts.up"]}, "target_parameters"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora"),
        ({"kasa_config": {"beta": 1}}, "kasa_config"),
        ({"velora_config": {"num_groups": 1}}, "velora_config"),
        ({"arrow_config": {"top_k": 1}}, "arrow_config"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"some_method_of_tomorrow": 1}, "some_method_of_tomorrow"),
        ({"bias": "some"}, "bias is 'some'"),
        ({"r": 3}, "has rank 2 and adapter_config.json says 3"),
        ({"use_dora": True}, "use_dora is True and .* has no magnitude"),
    ],
)
def test_settings_that_are_not_understood_are_refused_by_name(config: dict[str, Any], message: str, base: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        plan(base, lora(), **config)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lora() | {f"{Q}.lora_magnitude_vector": torch.ones(4)}, "use_dora is None and .* has a magnitude"),
        (lora() | {f"{Q}.lora_C.weight": torch.ones(4)}, r"1 of 3 tensors would not be used.*lora_C\.weight"),
        (lora() | {f"{Q}.lora_diag": torch.ones(4)}, r"lora_diag"),
        ({f"{Q}.lora_A.weight": torch.ones(2, 4)}, r"lora_A\.weight has no partner"),
        ({f"{Q}.lora_B.weight": torch.ones(4, 2)}, r"would not be used.*lora_B\.weight"),
        (
            lora("model.layers.7.self_attn.q_proj"),
            "layers.7.self_attn.q_proj.weight, which the base model does not have",
        ),
        (lora(outputs=5), r"\(5, 4\) and the base's .* \(4, 4\)"),
        (lora(UP, inputs=6, outputs=6), r"\(6, 6\) and the base's .* \(6, 4\)"),
        (lora() | {"lm_head.weight": torch.ones(12, 4)}, "vocabulary or layers were resized"),
        (lora() | {"model.embed_tokens.token_adapter.trainable_tokens_delta": torch.ones(1, 4)}, "does not say which"),
        ({f"{Q}.lora_A.weight": torch.ones(2, 4, 1, 1), f"{Q}.lora_B.weight": torch.ones(4, 2, 1, 1)}, "only linear"),
    ],
)
def test_tensors_without_a_place_are_refused_by_name(
    tensors: dict[str, torch.Tensor], message: str, base: Path
) -> None:
    with pytest.raises(BadInputError, match=message):
        plan(base, tensors)


def test_keys_that_peft_did_not_write_are_refused(base: Path) -> None:
    adapter = base.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG))
    save_file({"q_proj.lora_A.weight": torch.ones(2, 4)}, adapter / "adapter_model.safetensors")
    with pytest.raises(BadInputError, match=r"'q_proj\.lora_A\.weight' is not a key"):
        plan_edits(adapter, read_checkpoint(base), {})


def test_pickled_adapter_is_refused(base: Path) -> None:
    adapter = base.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG))
    (adapter / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(BadInputError, match="safetensors"):
        plan_edits(adapter, read_checkpoint(base), {})


def test_every_tensor_of_the_adapter_is_counted(base: Path) -> None:
    tensors = lora() | lora(UP, outputs=6) | {"lm_head.weight": torch.ones(9, 4), f"{Q}.base_layer.bias": torch.ones(4)}
    edits = plan(base, tensors, bias="lora_only", modules_to_save=["lm_head"])
    assert set(edits) == {f"{Q}.weight", f"{Q}.bias", f"{UP}.weight", "lm_head.weight"}
    assert len(read_header(base.parent / "adapter" / "adapter_model.safetensors")) == len(tensors)
