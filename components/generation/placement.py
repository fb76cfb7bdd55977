"""Where a model runs and in which precision, when a config says `auto`.

Called by both engines and by `identify`. Imports torch. Refuses a device that is not there.
"""

import torch

from components.errors import BadInputError


def choose_device(device: str) -> str:
    """`cpu` or `cuda`.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`.

    Raises:
        BadInputError: unknown, or no GPU is visible.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise BadInputError(f"device {device!r} is not known; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInputError("device is cuda and no GPU is visible here; set device: auto")
    return device


def choose_dtype(dtype: str, device: str) -> str:
    """`float32`, `bfloat16` or `float16`.

    Args:
        dtype: one of them, or `auto`: float32 on a CPU, bfloat16 on a GPU that has it.
        device: `cpu` or `cuda`.

    Raises:
        BadInputError: unknown.
    """
    if dtype != "auto":
        if dtype not in {"float32", "bfloat16", "float16"}:
            raise BadInputError(f"dtype {dtype!r} is not known; use auto, float32, bfloat16 or float16")
        return dtype
    if device == "cpu":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
