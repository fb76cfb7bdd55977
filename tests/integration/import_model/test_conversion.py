"""Pickle weights and GGUF files become safetensors, with real torch and transformers."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from components.errors import BadInputError
from components.import_model.config import ModelConfig
from components.import_model.import_model import import_model
from components.storage.store import fetch, open_store

REPOSITORY = Path(__file__).parents[3]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def store(tmp_path: Path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model folder without weights."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


# ---- pickle


def test_pickle_weights_are_converted_with_tied_ones_written_out(store, source: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    tied = torch.arange(6.0).reshape(2, 3)
    torch.save({"embed": tied, "head": tied, "slice": tied[:, 1]}, source / "pytorch_model.bin")
    found = import_model(ModelConfig(source=str(source), allow_pickle=True), store, work=tmp_path / "work")
    folder = fetch(found.reference)
    weights = load_file(folder / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in weights.items()} == {
        "embed": tied.tolist(),
        "head": tied.tolist(),
        "slice": tied[:, 1].tolist(),
    }
    assert found.provenance["converted_from"] == "pickle"
    assert found.provenance["format"] == "safetensors"
    assert not list(folder.glob("*.bin"))
    assert import_model(ModelConfig(source=str(source), allow_pickle=True), store, work=tmp_path / "work").reused


def test_sharded_pickle_weights_keep_their_index(store, source: Path, tmp_path: Path) -> None:
    import torch

    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for number, name in enumerate(names):
        torch.save({f"w{number}": torch.zeros(2)}, source / name)
    index = {"metadata": {"total_size": 16}, "weight_map": {"w0": names[0], "w1": names[1]}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found = import_model(ModelConfig(source=str(source), allow_pickle=True), store, work=tmp_path / "work")
    placed = json.loads((fetch(found.reference) / "model.safetensors.index.json").read_text())["weight_map"]
    assert placed == {"w0": "model-00001-of-00002.safetensors", "w1": "model-00002-of-00002.safetensors"}


class _Evil:
    def __reduce__(self):
        raise NotImplementedError


@pytest.mark.parametrize("kind", ["plain pickle", "torch"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not(store, source: Path, tmp_path: Path, kind: str) -> None:
    import torch

    mark = tmp_path / "mark"
    evil = _Evil()
    evil.__class__.__reduce__ = lambda _: (os.system, (f"touch {mark}",))
    if kind == "torch":
        torch.save({"w": evil}, source / "pytorch_model.bin")
    else:
        (source / "pytorch_model.bin").write_bytes(pickle.dumps({"w": evil}))
    with pytest.raises(BadInputError, match="without running code"):
        import_model(ModelConfig(source=str(source), allow_pickle=True), store, work=tmp_path / "work")
    assert not mark.exists()
    assert store.keys() == []


def test_a_training_checkpoint_is_no_model(store, source: Path, tmp_path: Path) -> None:
    import torch

    torch.save({"model": {"w": torch.zeros(2)}, "epoch": 3}, source / "pytorch_model.bin")
    with pytest.raises(BadInputError, match="holds other things than weights"):
        import_model(ModelConfig(source=str(source), allow_pickle=True), store, work=tmp_path / "work")


def test_a_conversion_without_torch_says_which_image_has_it(store, source: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    (source / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for config in (
        ModelConfig(source=str(source), allow_pickle=True),
        ModelConfig(source=str(tmp_path / "x.gguf")),
    ):
        with pytest.raises(BadInputError, match="needs torch.*train image"):
            import_model(config, store, work=tmp_path / "work")


# ---- GGUF


def write_tiny_gguf(path: Path) -> None:
    """A Llama of one layer with a vocabulary of bytes and three special tokens, its weights quantised to Q8_0."""
    import gguf

    hidden, heads, inner = 32, 2, 64
    alphabet = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ab", "cd"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    random = numpy.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        weights = random.normal(0, 0.1, shape).astype(numpy.float32)
        if len(shape) == 1:
            writer.add_tensor(name, weights)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), hidden)
    add("output_norm.weight", hidden)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", hidden, hidden)
    add("blk.0.ffn_gate.weight", inner, hidden)
    add("blk.0.ffn_up.weight", inner, hidden)
    add("blk.0.ffn_down.weight", hidden, inner)
    add("blk.0.attn_norm.weight", hidden)
    add("blk.0.ffn_norm.weight", hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
def test_a_gguf_file_is_dequantised_once_with_its_own_special_tokens(store, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path / "tiny.Q8_0.gguf"
    write_tiny_gguf(path)
    found = import_model(ModelConfig(source=str(path)), store, work=tmp_path / "work")
    assert found.provenance["converted_from"] == "gguf (Tiny)"
    assert found.provenance["licence"] == "apache-2.0"
    assert found.provenance["revision"].startswith("sha256:")
    assert found.provenance["dtypes"] == ["F32"]
    folder = fetch(found.reference)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # transformers 5.17 reads <|im_start|> as eos and no pad from such a file.
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == (
        "<|im_end|>",
        "<|im_end|>",
        "<|im_start|>",
    )
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.eos_token_id == 2
    assert not hasattr(model.config, "quantization_config")
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([[1, 5, 9]])).logits).all()

    # Another name, the same content: nothing is converted again. Another precision is another model.
    same = tmp_path / "other-name.gguf"
    path.rename(same)
    assert import_model(ModelConfig(source=str(same)), store, work=tmp_path / "work").reference == found.reference
    half = import_model(ModelConfig(source=str(same), dtype="bfloat16"), store, work=tmp_path / "work")
    assert half.provenance["dtypes"] == ["BF16"]
    assert half.reference != found.reference


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF\3\0\0\0" + b"\0" * 16, b"PK\3\4 a zip file", b"GGUF\3\0\0\0\xff"]
)
def test_what_is_no_gguf_file_is_refused(store, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match="is no complete GGUF file"):
        import_model(ModelConfig(source=str(path)), store, work=tmp_path / "work")


@pytest.mark.slow
def test_a_gguf_file_cut_off_in_its_weights_is_refused(store, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(BadInputError, match=r"tiny\.gguf"):
        import_model(ModelConfig(source=str(path)), store, work=tmp_path / "work")
    assert store.keys() == []


def _fetch_script():
    spec = importlib.util.spec_from_file_location("fetch_smollm2", REPOSITORY / "configs" / "fetch_smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2_from_its_gguf_file_loads_and_answers(store, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    script = _fetch_script()
    cache = Path(os.environ.get("GRPO_TEST_CACHE") or Path.home() / ".cache" / "grpo-pipeline") / "smollm2"
    try:
        path = script.fetch_smollm2(cache)
    except script.FetchError as error:
        pytest.skip(str(error))
    found = import_model(ModelConfig(source=str(path)), store, work=tmp_path / "work")
    assert found.provenance["parameters"] == 134_515_008
    assert found.provenance["licence"] == "apache-2.0"
    folder = fetch(found.reference)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    # As SmolLM2's own tokenizer writes it.
    assert tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"] == [1, 520, 9531, 198]
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        tokens = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=20, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0], skip_special_tokens=True)


def test_the_folder_import_needs_neither_torch_nor_transformers(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": numpy.zeros(2, numpy.float32)}, source / "model.safetensors")
    code = (
        "import sys\nfrom pathlib import Path\nfrom components.import_model.config import ModelConfig\n"
        "from components.import_model.import_model import import_model\n"
        "from components.storage.store import open_store\n"
        "import_model(ModelConfig(source=sys.argv[1]), open_store(sys.argv[2]), work=Path(sys.argv[3]))\n"
        "print([name for name in ('torch', 'transformers', 'boto3') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "store"), str(tmp_path / "work")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
