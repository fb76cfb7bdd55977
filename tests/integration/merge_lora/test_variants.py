"""The streamed weights against peft's own merge, and the merged model's logits against the adapter's, over variants."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from components.merge_lora.config import MergeConfig
from components.merge_lora.streaming import write_merged
from components.merge_lora.verify import measure

ATTENTION = ["q_proj", "v_proj"]
LINEAR = {"llama": [*ATTENTION, "o_proj", "down_proj"], "gpt2": ["c_attn", "c_proj", "c_fc"]}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"q_proj": 2, "c_attn": 2}, "alpha_pattern": {"layers.1.self_attn.v_proj": 3}},
    "layers": {"layers_to_transform": [1]},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "lora-bias": {"lora_bias": True, "target_modules": {"llama": ATTENTION}},
    "bias-all": {"bias": "all"},
    "bias-lora-only": {"bias": "lora_only"},
    "norm-saved": {"modules_to_save": {"llama": ["norm"], "gpt2": ["ln_f"]}},
    "dropout": {"lora_dropout": 0.1},
}
UNTIED_ONLY = {
    "head": {"target_modules": {"llama": [*ATTENTION, "lm_head"]}},
    "embedding": {"target_modules": {"llama": [*ATTENTION, "embed_tokens"]}},
    "embedding-dora": {"target_modules": {"llama": [*ATTENTION, "embed_tokens"]}, "use_dora": True},
    "head-saved": {"modules_to_save": ["lm_head"]},
    "both-saved": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "tokens": {"trainable_token_indices": [3, 5, 250]},
    "tokens-both": {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [7]}},
}
TIED = {
    "tied-head": {"target_modules": [*ATTENTION, "lm_head"]},
    "tied-embedding": {"target_modules": [*ATTENTION, "embed_tokens"]},
    "tied-embedding-dora": {"target_modules": [*ATTENTION, "embed_tokens"], "use_dora": True},
    "tied-both": {"target_modules": [*ATTENTION, "embed_tokens", "lm_head"]},
    "kept-tied": {"target_modules": [*ATTENTION, "embed_tokens"], "ensure_weight_tying": True},
    "kept-tied-head": {"target_modules": [*ATTENTION, "lm_head"], "ensure_weight_tying": True},
    "tied-head-saved": {"modules_to_save": ["lm_head"]},
    "tied-embedding-saved": {"modules_to_save": ["embed_tokens"]},
    "tied-both-saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "kept-tied-saved": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "tied-tokens": {"trainable_token_indices": [3, 5, 250]},
    "tied-tokens-apart": {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [7]}},
    "tied-tokens-head": {"trainable_token_indices": {"lm_head": [7]}},
}


def settings_for(kind: str, variant: dict[str, Any]) -> dict[str, Any]:
    family = kind.partition("-")[0]
    settings = {"target_modules": LINEAR[family], "fan_in_fan_out": family == "gpt2"} | variant
    return {
        key: value[family] if isinstance(value, dict) and family in value else value for key, value in settings.items()
    }


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    return tensors


def merged_by_peft(base: Path, adapter: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), adapter)
    return dict(model.merge_and_unload().state_dict())


def cases() -> list[Any]:
    found = [("llama", name, variant) for name, variant in (VARIANTS | UNTIED_ONLY).items()]
    found += [("gpt2", name, VARIANTS[name]) for name in VARIANTS if name not in {"lora-bias"}]
    found += [("llama-tied", name, VARIANTS[name]) for name in ("plain", "dora", "bias-all")]
    return [pytest.param(kind, variant, id=f"{kind}-{name}") for kind, name, variant in found]


@pytest.mark.parametrize(("kind", "variant"), cases())
def test_float32_weights_equal_pefts_bit_for_bit(
    kind: str, variant: dict[str, Any], bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    base = bases(kind)
    adapter = save_adapter(base, **settings_for(kind, variant))

    written = write_merged(base, adapter, MergeConfig(), tmp_path / "out")

    expected = merged_by_peft(base, adapter)
    given = tensors_of(tmp_path / "out")
    assert set(given) <= set(expected)
    assert set(expected) - set(given) <= {"lm_head.weight"}
    for name, tensor in given.items():
        assert torch.equal(tensor, expected[name]), name
    before = tensors_of(base)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in given.items())
    assert written.changed_elements > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", ["plain", "dora", "bias-all"])
def test_low_precision_weights_equal_one_rounding_of_the_float32_merge(
    kind: str, name: str, dtype: str, bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    base = bases(kind, dtype)
    adapter = save_adapter(base, **settings_for(kind, VARIANTS[name]))

    write_merged(base, adapter, MergeConfig(), tmp_path / "out")

    exact = merged_by_peft(base, adapter, torch.float32)
    for key, tensor in tensors_of(tmp_path / "out").items():
        assert torch.equal(tensor, exact[key].to(tensor.dtype)), key


def test_bfloat16_merge_is_nearer_the_exact_sum_than_pefts_safe_merge(
    bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    """peft's safe merge rounds the update before the sum as well; the two differ by at most both roundings."""
    base = bases("llama", "bfloat16")
    adapter = save_adapter(base, **settings_for("llama", {}))
    write_merged(base, adapter, MergeConfig(), tmp_path / "out")
    exact = merged_by_peft(base, adapter, torch.float32)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), adapter)
    safe = model.merge_and_unload(safe_merge=True).state_dict()

    before, given = tensors_of(base), tensors_of(tmp_path / "out")
    ours = theirs = 0.0
    half_step = 2.0**-8
    for name, tensor in given.items():
        update = exact[name] - before[name].float()
        bound = half_step * (update.abs() + 2 * exact[name].abs()) * (1 + half_step) + 1e-30
        assert bool(((tensor.float() - safe[name].float()).abs() <= bound).all()), name
        ours += float((tensor.float() - exact[name]).abs().sum())
        theirs += float((safe[name].float() - exact[name]).abs().sum())
    assert ours < theirs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_written_dtype_can_differ_from_the_bases(
    dtype: str, bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    base = bases("llama", "bfloat16" if dtype == "float32" else "float32")
    adapter = save_adapter(base, **settings_for("llama", {}))

    write_merged(base, adapter, MergeConfig(dtype=dtype), tmp_path / "out")

    exact = merged_by_peft(base, adapter, torch.float32)
    for name, tensor in tensors_of(tmp_path / "out").items():
        assert tensor.dtype == getattr(torch, dtype)
        assert torch.equal(tensor, exact[name].to(tensor.dtype)), name


def test_adapters_stored_in_bfloat16_merge_as_peft_loads_them(
    bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    base = bases("llama")
    adapter = save_adapter(base, **settings_for("llama", {}))
    weights = adapter / "adapter_model.safetensors"
    save_file({key: value.bfloat16() for key, value in load_file(weights).items()}, weights)

    write_merged(base, adapter, MergeConfig(), tmp_path / "out")

    expected = merged_by_peft(base, adapter)
    for name, tensor in tensors_of(tmp_path / "out").items():
        assert torch.equal(tensor, expected[name]), name


def test_base_saved_without_the_models_prefix_is_understood(
    bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    """GPT-2 on the hub is stored as `h.0...` while the model calls it `transformer.h.0...`."""
    base = bases("gpt2")
    adapter = save_adapter(base, **settings_for("gpt2", {}))
    bare = tmp_path / "bare"
    model = AutoModelForCausalLM.from_pretrained(base)
    model.transformer.save_pretrained(bare)

    write_merged(bare, adapter, MergeConfig(), tmp_path / "out")

    expected = merged_by_peft(base, adapter)
    given = tensors_of(tmp_path / "out")
    assert "h.0.attn.c_attn.weight" in given
    for name, tensor in given.items():
        assert torch.equal(tensor, expected[f"transformer.{name}"]), name


@pytest.mark.parametrize("shard_mib", [0.02, 0.05, 1])
def test_shards_and_index_load_back_whole(
    shard_mib: float, bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    base = bases("llama")
    adapter = save_adapter(base, **settings_for("llama", {}))
    out = tmp_path / "out"

    written = write_merged(base, adapter, MergeConfig(max_shard_gib=shard_mib / 1024), out)

    assert (len(written.files) > 1) == (shard_mib < 1)
    expected = merged_by_peft(base, adapter)
    (out / "config.json").write_bytes((base / "config.json").read_bytes())
    loaded, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    if shard_mib < 1:
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert sorted(set(index["weight_map"].values())) == sorted(written.files)
        assert index["metadata"]["total_size"] == sum(t.numel() * t.itemsize for t in tensors_of(out).values())


def measured(base: Path, adapter: Path, out: Path, targets: dict[str, str]) -> dict[str, Any]:
    messages = [{"role": "user", "content": "abc?"}]
    return measure(
        {
            "base": str(base),
            "trained": str(adapter),
            "merged": str(out),
            "is_adapter": True,
            "probes": [messages],
            "asked": {"question": "abc?", "messages": messages},
            "extended": False,
            "templates": {},
            "targets": targets,
            "probe_tokens": 8,
            "dtype": "float32",
            "device": "cpu",
        }
    )


@pytest.mark.parametrize("name", list(TIED))
def test_tied_models_do_what_the_adapter_did(
    name: str, bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    """Where training moved embedding and head apart, the merged model holds both; peft's merge would mix them up."""
    from components.merge_lora.carrying import carry_files, write_config
    from components.merge_lora.template import Opening

    base = bases("llama-tied")
    adapter = save_adapter(base, **settings_for("llama-tied", TIED[name]))
    out = tmp_path / "out"

    written = write_merged(base, adapter, MergeConfig(), out)
    write_config(base, out, dtype="base", untied=bool(written.untied))
    carry_files(base, out, Opening())
    result = measured(base, adapter, out, written.targets)

    assert result["logits"]["rms"] < 1e-5
    assert result["effect"]["rms"] > 1e-2
    assert result["weights"]["apart"] == 0
    assert all(probe["agree"] == probe["tokens"] for probe in result["greedy"])
    assert bool(written.untied) == (not name.startswith("kept") and name != "tied-tokens")
    assert not result["loading"]["missing_keys"]
    assert not result["loading"]["unexpected_keys"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "variant"), cases())
def test_merged_logits_equal_the_adapters(
    kind: str, variant: dict[str, Any], bases: Callable[..., Path], save_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    from components.merge_lora.carrying import carry_files
    from components.merge_lora.template import Opening

    base = bases(kind)
    adapter = save_adapter(base, **settings_for(kind, variant))
    out = tmp_path / "out"

    written = write_merged(base, adapter, MergeConfig(), out)
    carry_files(base, out, Opening())
    result = measured(base, adapter, out, written.targets)

    assert result["logits"]["rms"] < 1e-5
    assert result["weights"]["equal"] == result["weights"]["expected"] > 0
