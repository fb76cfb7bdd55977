"""Attention for one new token a row that does not copy the cache: grouped query heads are folded into the query length.

Used by the transformers engine in place of "sdpa", which repeats keys and values for every query head of a group in
each step as soon as a batch has padding: on a CPU that costs more than all of a small model's weights. The result is
the same sum in another order.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "grouped_sdpa"


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function for grouped heads; everything but a masked single step goes to "sdpa".

    Args:
        module: the attention layer.
        query: (rows, query heads, tokens, head size).
        key: (rows, key heads, columns, head size).
        value: as key.
        attention_mask: (rows, 1, tokens, columns), or None.
        options: as transformers passes them.

    Returns:
        (rows, tokens, query heads, head size), and no weights.
    """
    rows, heads, tokens, size = query.shape
    groups = heads // key.shape[1]
    folds = tokens == 1 and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    if not folds or options.get("position_bias") is not None:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return attended, None
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, heads // groups, groups, size),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )
    return attended.reshape(rows, 1, heads, value.shape[-1]), None


def fold_groups(model: Any) -> None:
    """Let a model that would use "sdpa" use this instead; others keep what they have.

    Args:
        model: a loaded transformers model.
    """
    config = model.config.get_text_config()
    grouped = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    if grouped and config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, grouped_sdpa)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
