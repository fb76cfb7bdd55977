"""The tokenizer of a model directory, refused where it and the contract would talk past each other.

Called by dataset preparation (so that a run stops before anything is paid for), by the smoke test's sampling and by the
evaluation: a chat template that opens part of the format unsaid, or tags that decoding drops, would make rewards and
evaluation judge other texts than a user of the model sees.
"""

import json
from pathlib import Path
from typing import Any

from components.contract.contract import Contract
from components.errors import BadInputError


def load_tokenizer(directory: Path, contract: Contract) -> Any:
    """A model directory's tokenizer that fits the contract.

    Args:
        directory: Hugging Face directory with tokenizer files and a chat template.
        contract: the run's task contract.

    Returns:
        A transformers tokenizer.

    Raises:
        BadInputError: there is no tokenizer that can be loaded or no chat template; the template opens the response
            with something else than `contract.prefill`; or decoding drops the format's tags.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInputError(
            f"{directory} has no tokenizer that can be loaded ({reason}); give a whole model"
        ) from error
    if not tokenizer.chat_template:
        raise BadInputError(f"the tokenizer in {directory} has no chat template; name one in model.chat_template")
    check_tokenizer(tokenizer, contract, origin=str(directory))
    return tokenizer


def check_tokenizer(tokenizer: Any, contract: Contract, *, origin: str) -> None:
    """Refuse a tokenizer whose template or special tokens do not fit the contract.

    Args:
        tokenizer: with a chat template.
        contract: the run's task contract.
        origin: what to call it in messages.

    Raises:
        BadInputError: saying what to write into the config.
    """
    opened, stated = contract.prefill(tokenizer), contract.config.prefill
    if opened.strip() != stated.strip():
        mend = f"set contract.prefill: {json.dumps(opened)}" if opened else "take contract.prefill out of the config"
        raise BadInputError(
            f"contract.prefill is {stated!r}, and the chat template of {origin} opens the response with {opened!r}: "
            f"completions would be judged without what the template writes; {mend}"
        )
    if stated:
        return  # a completion begins in the middle of the format: only whole ones can be tried here
    written = contract.write("reasoning", "42")
    ids = tokenizer(written, add_special_tokens=False)["input_ids"]
    kept = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if contract.check(written).strict and not contract.check(kept).strict:
        raise BadInputError(
            f"the tokenizer of {origin} loses part of the format: {written!r} comes back as {kept!r}. Format tags must "
            "not be special tokens (training, evaluation and servers drop those): set special: false in its files"
        )
