"""Text to tokens and back, the same for both engines: no special token added to a prompt, none left in a completion.

Special tokens are dropped from completions because TRL (training) and OpenAI-compatible servers drop them: a format
tag that the tokenizer marks as special would be lost there as well, so it must not be one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from components.errors import BadInputError
from components.generation.interface import Completion


def stop_token_ids(tokenizer: Any, defaults: Mapping[str, Any]) -> list[int]:
    """Tokens that end a completion: the generation config's and the tokenizer's.

    Args:
        tokenizer: a transformers tokenizer.
        defaults: what generation_config.json states; `eos_token_id` may be a number or a list.

    Raises:
        BadInputError: neither names one, so that every completion would run to the token limit.
    """
    stated = defaults.get("eos_token_id")
    ids = set(stated) if isinstance(stated, list) else set() if stated is None else {stated}
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise BadInputError(
            f"the model in {tokenizer.name_or_path} has no end token: set eos_token_id in its generation_config.json"
        )
    return sorted(int(token) for token in ids)


def encode_prompts(tokenizer: Any, prompts: Sequence[str], max_new_tokens: int, context: int | None) -> list[list[int]]:
    """Token ids of rendered prompts.

    Args:
        tokenizer: a transformers tokenizer.
        prompts: rendered texts.
        max_new_tokens: room each needs behind it.
        context: the model's context length in tokens, where known.

    Raises:
        BadInputError: a prompt is empty, or too long; the first one is named.
    """
    if not prompts:
        return []
    encoded: list[list[int]] = tokenizer(list(prompts), add_special_tokens=False, return_attention_mask=False).input_ids
    for index, ids in enumerate(encoded):
        if not ids:
            raise BadInputError(f"prompt {index} is empty; a model needs at least one token to go on from")
        if context is not None and len(ids) + max_new_tokens > context:
            raise BadInputError(
                f"prompt {index} has {len(ids)} tokens and max_new_tokens is {max_new_tokens}, together more than the "
                f"model's context of {context}; lower max_new_tokens or the data's prompt limit"
            )
    return encoded


def to_completion(tokenizer: Any, ids: Sequence[int], stops: frozenset[int], limit: int) -> Completion:
    """The completion that generated tokens spell.

    Args:
        tokenizer: a transformers tokenizer.
        ids: generated tokens, the end token included where there was one.
        stops: tokens that end a completion.
        limit: most tokens allowed.
    """
    ended = bool(ids) and ids[-1] in stops
    text = tokenizer.decode(
        list(ids[:-1] if ended else ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return Completion(text=text, tokens=len(ids), truncated=not ended and len(ids) >= limit, ids=tuple(ids))
