"""The `merge` section: how the adapter is folded into the base model and how the result is checked.

Read by `merge.merge_lora`. Light: imports pydantic only.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from components.sections import Section


class MergeConfig(Section):
    """How the merged model is written and verified."""

    dtype: Literal["base", "float32", "bfloat16", "float16"] = "base"
    """What the weights are written in; `base` keeps each tensor's own. Sums are made in 32 bit and rounded once."""

    max_shard_gib: Annotated[float, Field(gt=0)] = 5.0
    """Largest weight file in GiB; a single tensor above it gets a file of its own."""

    default_system_prompt: bool = True
    """Let the chat template insert the contract's system prompt when a request brings none."""

    probes: Annotated[int, Field(ge=1, le=8)] = 4
    """Prompts on which base with adapter and merged model are compared."""

    probe_tokens: Annotated[int, Field(ge=1, le=256)] = 16
    """Tokens generated greedily for each probe."""

    tolerance: Annotated[float, Field(gt=0)] | None = None
    """Largest allowed root-mean-square difference of the probes' logits divided by their standard deviation over the
    vocabulary; null takes 0.0001 for float32, 0.02 for float16 and 0.1 for bfloat16."""

    check_dtype: Literal["float32", "written"] = "float32"
    """What the comparison computes in: float32 shows only what rounding the weights did and needs 4 bytes a parameter
    of memory; `written` needs less and adds the noise of low-precision arithmetic to the difference."""

    check_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where the comparison runs: cpu, cuda or auto (the GPU when there is one)."""

    @model_validator(mode="after")
    def _tolerance_is_meant(self) -> Self:
        if self.tolerance is not None and self.tolerance > 1:
            raise ValueError("merge.tolerance above 1 would accept any model: give a share of the logits' spread")
        return self
