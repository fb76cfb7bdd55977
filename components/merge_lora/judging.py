"""Decides from what was written and measured whether a merged model is what was trained.

Used by `merge`. Pure: numbers in, sentences out.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from components.merge_lora.config import MergeConfig

if TYPE_CHECKING:
    from components.merge_lora.streaming import WrittenWeights

TOLERANCES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
"""Largest difference of probe logits by written dtype, as a share of their spread (`merge.tolerance` overrides)."""

STEP_SIZES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Relative distance of neighbouring numbers."""


def tolerance_for(dtype: str, merge: MergeConfig) -> float:
    """The largest `rms` difference of logits that passes.

    Args:
        dtype: what the weights were written in.
        merge: the config section, whose tolerance wins.
    """
    return merge.tolerance or TOLERANCES.get(dtype, TOLERANCES["float32"])


def find_failures(written: "WrittenWeights", measured: Mapping[str, Any], merge: MergeConfig) -> list[str]:
    """What is wrong with a merged model, one sentence each; none when it is what was trained.

    Args:
        written: from `write_merged`.
        measured: from `verify.measure`.
        merge: the config section.
    """
    return [
        *weight_failures(written),
        *_loading_failures(measured),
        *_peft_failures(measured.get("weights"), written.dtype),
        *_parity_failures(measured, written.dtype, tolerance_for(written.dtype, merge)),
        *_text_failures(measured),
    ]


def weight_failures(written: "WrittenWeights") -> list[str]:
    """What is wrong with the weights by themselves; seen before anything is loaded.

    Args:
        written: from `write_merged`.
    """
    failures = []
    if written.not_finite:
        failures.append(
            f"{len(written.not_finite)} tensors hold NaN or infinity, first {written.not_finite[0]}: training "
            f"diverged, or values do not fit {written.dtype} (merge.dtype)"
        )
    if not written.changed_elements:
        if written.update_norm:
            failures.append(
                f"an update of norm {written.update_norm:.3g} vanished when rounded to {written.dtype}: "
                "write float32 (merge.dtype) or train with a larger learning rate"
            )
        else:
            failures.append("the merged weights equal the base's: training changed nothing")
    return failures


def find_warnings(written: "WrittenWeights", measured: Mapping[str, Any]) -> list[str]:
    """What passes and is worth knowing.

    Args:
        written: from `write_merged`.
        measured: from `verify.measure`.
    """
    warnings = []
    effect = measured.get("effect")
    if effect is not None and measured["logits"]["rms"] > 0.5 * effect["rms"]:
        warnings.append(
            f"training moved the probes' logits by {effect['rms']:.2g} of their spread and rounding to {written.dtype} "
            f"by {measured['logits']['rms']:.2g}: much of what was learned is lost; write float32 (merge.dtype)"
        )
    if written.unchanged and written.changed_elements:
        warnings.append(f"{len(written.unchanged)} adapted tensors did not change, first {written.unchanged[0]}")
    return warnings


def _loading_failures(measured: Mapping[str, Any]) -> list[str]:
    return [
        f"loading it reports {kind.replace('_', ' ')}: {', '.join(names[:3])}"
        for kind, names in measured["loading"].items()
        if kind.endswith("_keys") and names
    ]


def _peft_failures(weights: Mapping[str, Any] | None, dtype: str) -> list[str]:
    if weights is None:
        return []
    failures = []
    found = weights["equal"] + weights["apart"]
    if found != weights["expected"]:
        failures.append(f"peft adapts {found} layers and the merge changed {weights['expected']}")
    # Two steps of the written dtype, or the noise of 32-bit sums made in another order (on a GPU).
    if weights["largest"] > max(2 * STEP_SIZES.get(dtype, 0.0), 1e-6):
        failures.append(
            f"{weights['tensor']} differs from peft's own merge by {weights['largest']:.2g} of its largest value"
        )
    return failures


def _parity_failures(measured: Mapping[str, Any], dtype: str, tolerance: float) -> list[str]:
    logits = measured["logits"]
    if not logits["finite"]:
        return ["logits on the probe prompts are not finite"]
    failures = []
    if logits["rms"] > tolerance:
        failures.append(
            f"logits on the probe prompts differ by {logits['rms']:.3g} of their spread, more than the {tolerance:g} "
            f"allowed for {dtype} (merge.tolerance)"
        )
    # A token may differ only where the trained model itself was as good as undecided between the two.
    near_tie = max(6 * logits["rms"], 1e-4)
    for number, probe in enumerate(measured["greedy"], start=1):
        if probe["agree"] < probe["tokens"] and (probe["margin"] is None or probe["margin"] > near_tie):
            failures.append(f"greedy tokens of probe {number} part after {probe['agree']} of {probe['tokens']}")
    return failures


def _text_failures(measured: Mapping[str, Any]) -> list[str]:
    failures = [
        f"the tokenizer fails {name.replace('_', ' ')}" for name, same in measured["tokenizer"].items() if same is False
    ]
    failures += [
        f"the chat template {check['template']!r} renders other text than the base's when a request {check['case']}"
        for check in measured["template"]
        if not check["same"]
    ]
    return failures
