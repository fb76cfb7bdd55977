"""The program that loads a merged model as a user would and measures how far it is from what was trained.

Started by `merge` in a process of its own (`python -m components.merge_lora.verify`), so that it proves that the files
load, and so that its imports run while the merge does. It waits for one line on stdin, the path of a JSON request, and
writes its measurements as JSON beside it. It judges nothing: `merge` does. Needs memory for one model at a time.
"""

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

if __name__ == "__main__":
    # transformers imports these for assisted generation alone; doing without them saves a quarter of the start.
    sys.modules.update(dict.fromkeys(("sklearn", "pandas", "scipy")))  # type: ignore[arg-type]

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from components.merge_lora.weights import read_checkpoint

Messages = Sequence[Mapping[str, str]]
PROMPT_POSITIONS = 32
"""How many of a prompt's last positions are compared, beside those of the generated tokens."""


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about the merged model that needs it loaded.

    Args:
        request: `base`, `trained` (adapter or whole model) and `merged` directories, `is_adapter`, `probes` (message
            lists), `asked` (a question, and the messages the contract makes of it), `extended` (whether the templates
            insert the contract's opening), `templates` (the base's, by name), `targets` (module path -> tensor name),
            `probe_tokens`, `dtype` to compute in or null for the written one, `device`.

    Returns:
        JSON-able measurements; see `judging.find_failures`.
    """
    device = _device(request["device"])
    tokenizer = AutoTokenizer.from_pretrained(request["merged"])
    prompts = [_encode(tokenizer, messages) for messages in request["probes"]]
    result: dict[str, Any] = {"device": device, "tokenizer": _compare_tokenizers(request, tokenizer)}
    result["template"] = _compare_templates(request, tokenizer)
    # The trained model is gone from memory when the merged one is loaded.
    trained = _measure_trained(request, prompts, device)
    gc.collect()
    if trained.weights is not None:
        result["weights"] = trained.weights
    merged, loading = AutoModelForCausalLM.from_pretrained(request["merged"], dtype="auto", output_loading_info=True)
    result["loading"] = {kind: sorted(map(str, loading[kind])) for kind in ("missing_keys", "unexpected_keys")}
    result["loading"]["dtype"] = str(merged.dtype).removeprefix("torch.")
    merged = merged.to(device=device, dtype=_compute_dtype(request) or merged.dtype).eval()
    sequences = [_generate(merged, prompt, request["probe_tokens"]) for prompt in prompts]
    result["logits"] = compare_logits(trained.logits, _all_last_logits(merged, trained.sequences, request))
    if trained.base_logits is not None:
        result["effect"] = compare_logits(trained.logits, trained.base_logits)
    result["greedy"] = [
        _compare_greedy(len(prompt), *pair)
        for prompt, *pair in zip(prompts, trained.sequences, sequences, trained.logits, strict=True)
    ]
    result["sample"] = tokenizer.decode(sequences[0][len(prompts[0]) :])
    return result


@dataclass(frozen=True)
class _Trained:
    sequences: list[list[int]]
    logits: list[torch.Tensor]
    base_logits: list[torch.Tensor] | None
    weights: dict[str, Any] | None


def _measure_trained(request: Mapping[str, Any], prompts: list[list[int]], device: str) -> _Trained:
    """What the base model with its adapter (or the whole trained model) says, and what peft makes of the weights."""
    source = request["base"] if request["is_adapter"] else request["trained"]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=_compute_dtype(request) or "auto").to(device).eval()
    if not request["is_adapter"]:
        sequences = [_generate(model, prompt, request["probe_tokens"]) for prompt in prompts]
        return _Trained(sequences, _all_last_logits(model, sequences, request), None, None)
    from peft import PeftModel

    model = PeftModel.from_pretrained(model, request["trained"]).eval()
    sequences = [_generate(model, prompt, request["probe_tokens"]) for prompt in prompts]
    logits = _all_last_logits(model, sequences, request)
    with model.disable_adapter():
        base_logits = _all_last_logits(model, sequences, request)
    weights = _compare_weights(model, Path(request["merged"]), request["targets"])
    return _Trained(sequences, logits, base_logits, weights)


def compare_logits(expected: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> dict[str, float | bool]:
    """How far two models' logits are apart.

    Args:
        expected, given: one tensor (positions, vocabulary) a probe.

    Returns:
        `rms`: root mean square of the difference divided by the expected logits' standard deviation over the
        vocabulary, pooled over positions; `largest`: largest absolute difference; `finite`.
    """
    squares = spread = largest = 0.0
    finite = True
    for one, other in zip(expected, given, strict=True):
        difference = (one - other).double()
        squares += float(difference.square().sum())
        spread += float((one.double() - one.double().mean(-1, keepdim=True)).square().sum())
        largest = max(largest, float(difference.abs().max()))
        finite = finite and bool(torch.isfinite(one).all()) and bool(torch.isfinite(other).all())
    return {"rms": (squares / spread) ** 0.5 if spread else float("inf"), "largest": largest, "finite": finite}


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def _encode(tokenizer: Any, messages: Messages) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer("\n".join(message["content"] for message in messages))["input_ids"])
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _compute_dtype(request: Mapping[str, Any]) -> torch.dtype | None:
    return getattr(torch, request["dtype"]) if request["dtype"] else None


@torch.inference_mode()
def _generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    settings = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=tokens,
        repetition_penalty=1.0,
        pad_token_id=model.generation_config.pad_token_id or 0,
        eos_token_id=model.generation_config.eos_token_id,
    )
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
    return [int(token) for token in output[0]]


@torch.inference_mode()
def _all_last_logits(model: Any, sequences: list[list[int]], request: Mapping[str, Any]) -> list[torch.Tensor]:
    """Logits (positions, vocabulary) at each sequence's last positions; at all of them they could fill the memory."""
    kept = request["probe_tokens"] + PROMPT_POSITIONS
    inputs = (torch.tensor([sequence], device=model.device) for sequence in sequences)
    return [model(input_ids=tokens).logits[0, -kept:].float().cpu() for tokens in inputs]


def _compare_greedy(
    prompt_length: int, trained: list[int], merged: list[int], logits: torch.Tensor
) -> dict[str, int | float | None]:
    """Where two greedy continuations part, and how near a tie the trained model was there."""
    length = max(len(trained), len(merged)) - prompt_length
    for position in range(prompt_length, max(len(trained), len(merged))):
        one = trained[position] if position < len(trained) else None
        other = merged[position] if position < len(merged) else None
        if one != other:
            margin = None
            if one is not None and other is not None:
                row = logits[position - 1 - len(trained)]
                margin = float((row[one] - row[other]).abs() / row.std())
            return {"tokens": length, "agree": position - prompt_length, "margin": margin}
    return {"tokens": length, "agree": length, "margin": None}


def _compare_weights(model: Any, merged: Path, targets: Mapping[str, str]) -> dict[str, Any]:
    """Merge with peft, layer by layer, and compare each layer's weight with the one that was written."""
    from peft.tuners.lora import LoraLayer

    written = read_checkpoint(merged)
    equal, apart, worst, worst_name = 0, 0, 0.0, None
    for path, module in model.base_model.model.named_modules():
        if not isinstance(module, LoraLayer) or path not in targets:
            continue
        module.merge()
        given = written[targets[path]].read()
        expected = module.get_base_layer().weight.detach().cpu().to(given.dtype)
        if torch.equal(expected, given):
            equal += 1
            continue
        apart += 1
        distance = float((expected.double() - given.double()).abs().max() / expected.double().abs().max())
        if distance > worst or worst_name is None:
            worst, worst_name = distance, targets[path]
    return {"equal": equal, "apart": apart, "largest": worst, "tensor": worst_name, "expected": len(targets)}


def _compare_tokenizers(request: Mapping[str, Any], merged: Any) -> dict[str, Any]:
    base = AutoTokenizer.from_pretrained(request["base"])
    texts = [message["content"] for messages in request["probes"] for message in messages]
    compared: dict[str, Any] = {}
    if (Path(request["trained"]) / "tokenizer_config.json").exists():
        trained = AutoTokenizer.from_pretrained(request["trained"])
        compared["same_as_in_training"] = all(trained(text)["input_ids"] == merged(text)["input_ids"] for text in texts)
    return compared | {
        "tokens": len(merged),
        "same_size": len(base) == len(merged),
        "same_special_tokens": base.special_tokens_map == merged.special_tokens_map
        and base.all_special_ids == merged.all_special_ids,
        "same_encoding": all(base(text)["input_ids"] == merged(text)["input_ids"] for text in texts),
    }


def _compare_templates(request: Mapping[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    """Render conversations through the written templates and the base's, which must agree once the default is given."""
    question, asked = request["asked"]["question"], list(request["asked"]["messages"])
    user = [{"role": "user", "content": question}]
    turns = [{"role": "assistant", "content": "Three."}, {"role": "user", "content": "And now?"}]
    system = [{"role": "system", "content": "Be \"brief\" & 'kind'."}]
    by_default = asked if request["extended"] else user
    cases: list[tuple[str, Messages, Messages, dict[str, Any]]] = [
        ("brings its own system message", system + user, system + user, {}),
        ("brings a system message and turns", system + user + turns, system + user + turns, {}),
        ("brings what the contract asks", asked, asked, {}),
        ("brings none", user, by_default, {}),
        ("brings none and has turns", user + turns, by_default + turns, {}),
        ("switches the default off", user, user, {"default_system": False}),
    ]
    results = []
    for name, template in request["templates"].items():
        for case, given, expected, options in cases:
            for prompt in (True, False):
                original = _render(tokenizer, template, expected, prompt)
                written = _render(tokenizer, name, given, prompt, **options)
                result = {"template": name, "case": case, "same": original == written}
                if case.startswith("brings none") and original is None:
                    result["same"] = False
                if result not in results:
                    results.append(result)
    return results


def _render(tokenizer: Any, template: str, messages: Messages, prompt: bool, **options: Any) -> str | None:
    """The rendered text, or None where the template refuses the conversation."""
    from jinja2.exceptions import TemplateError

    chosen = template if isinstance(tokenizer.chat_template, dict) or "{" in template else None
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), chat_template=chosen, add_generation_prompt=prompt, tokenize=False, **options
            )
        )
    except TemplateError:
        return None


def main() -> None:
    """Wait for a request's path on stdin, answer it in the file beside it."""
    transformers_logging.disable_progress_bar()
    import peft  # noqa: F401  loaded now, while the merge is still running

    line = sys.stdin.readline().strip()
    if not line:
        return
    request = json.loads(Path(line).read_text(encoding="utf-8"))
    result = measure(request)
    Path(line).with_name("measured.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
