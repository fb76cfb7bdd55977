"""The contract's prompt side: system prompt, examples, rendering, prefill, hash; and that importing it stays light."""

import json
import pickle
import subprocess
import sys
from typing import Any

import jinja2
import pytest
from pydantic import ValidationError

from components.contract import build_contract, default_contract
from components.contract.config import ContractConfig
from components.contract.tokenizer import check_tokenizer
from components.errors import BadInputError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ PREFILL }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>model\n{% endif %}"
)


def chatml(opened: str) -> str:
    return CHATML.replace("PREFILL", json.dumps(opened))


class Tokenizer:
    """Renders a chat template as transformers does."""

    def __init__(self, template: str) -> None:
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = self._raise
        self._template = environment.from_string(template)

    @staticmethod
    def _raise(message: str) -> None:
        raise jinja2.TemplateError(message)

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert tokenize is False
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert add_special_tokens is False
        return {"input_ids": list(text.encode())}

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(ids).decode()


def contract(**config: Any) -> Any:
    return build_contract(ContractConfig.model_validate(config))


EXAMPLE = {"question": "What is 2 + 3?", "reasoning": "2 and 3 make 5", "answer": "5"}


def test_the_default_prompt_shows_the_format() -> None:
    assert default_contract().system_prompt == (
        "Respond in the following format:\n<reasoning>\n[Your step-by-step thinking]\n</reasoning>\n"
        "<answer>\n[Final answer]\n</answer>"
    )


def test_examples_go_where_the_prompt_says_or_to_its_end() -> None:
    written = "Question: What is 2 + 3?\n<reasoning>\n2 and 3 make 5\n</reasoning>\n<answer>\n5\n</answer>"
    placed = contract(system_prompt="Be brief.\n{examples}\nUse this form:\n{format}", examples=[EXAMPLE])
    assert placed.system_prompt.startswith(f"Be brief.\n{written}\nUse this form:\n<reasoning>")
    assert contract(system_prompt="Be brief.", examples=[EXAMPLE]).system_prompt == f"Be brief.\n\n{written}"
    assert contract(system_prompt="Be brief. {examples}").system_prompt == "Be brief."
    assert default_contract().config.examples == ()


def test_an_examples_answer_is_not_taken_for_a_placeholder() -> None:
    judge = contract(
        system_prompt="Say <reasoning>\nI think\n</reasoning>\n<answer>\n42\n</answer>", examples=[EXAMPLE]
    )
    for answer in ("5", "42"):
        assert judge.check(judge.write("I add them", answer)).strict


def test_placeholders_of_the_prompt_and_of_the_config_are_no_answers() -> None:
    judge = contract(
        system_prompt="<reasoning>[thoughts go in]</reasoning><answer>[a whole figure]</answer>",
        answer={"placeholders": ["FILL ME IN"]},
    )
    assert judge.read_answer(judge.write("adding", "[A whole figure]")) is None
    assert judge.read_answer(judge.write("adding", "fill me in")) is None
    assert not judge.check(judge.write("[thoughts go in]", "12")).strict


def test_an_example_that_breaks_the_format_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"contract\.examples\[1\]"):
        contract(examples=[{**EXAMPLE, "answer": "<answer>5</answer>"}])


def test_messages_have_the_system_prompt_first_or_in_the_users() -> None:
    assert [m["role"] for m in default_contract().messages("How many?")] == ["system", "user"]
    joined = contract(system_role="user").messages("How many?")
    assert [m["role"] for m in joined] == ["user"]
    assert joined[0]["content"].endswith("\n\nHow many?")
    assert contract(system_prompt="").messages("How many?") == [{"role": "user", "content": "How many?"}]


def test_rendering_uses_the_chat_template_with_its_generation_prompt() -> None:
    judge = default_contract()
    tokenizer = Tokenizer(chatml(""))
    text = judge.render(tokenizer, {"prompt": judge.messages("How many?")})
    assert text.endswith("How many?<|im_end|>\n<|im_start|>assistant\n")
    assert judge.render(tokenizer, {"question": "How many?"}) == text
    with pytest.raises(BadInputError, match="no prompt and no question"):
        judge.render(tokenizer, {"id": "1"})


def test_a_template_without_a_system_role_is_refused_with_the_mend() -> None:
    with pytest.raises(BadInputError, match=r"contract\.system_role: user"):
        default_contract().render(Tokenizer(NO_SYSTEM), {"question": "How many?"})
    assert "How many?" in contract(system_role="user").render(Tokenizer(NO_SYSTEM), {"question": "How many?"})


@pytest.mark.parametrize(
    ("config", "opened", "prefill"),
    [
        ({"format": "r1"}, "<think>\n", "<think>\n"),
        ({"format": "r1"}, "<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ({"format": "r1"}, "", ""),
        ({}, "<think>\n", ""),
        ({}, "<reasoning>\n", "<reasoning>\n"),
        ({"format": "json"}, "{", "{"),
        ({"format": {"type": "xml", "reasoning_tag": "think"}}, "<think>\n", "<think>\n"),
    ],
)
def test_what_a_template_opens_of_the_format_is_detected(config: dict[str, Any], opened: str, prefill: str) -> None:
    judge = contract(**config)
    tokenizer = Tokenizer(chatml(opened))
    assert judge.prefill(tokenizer) == prefill
    fitted = contract(**config, prefill=prefill)
    check_tokenizer(tokenizer, fitted, origin="model")
    if prefill in ("<think>\n", "<reasoning>\n"):
        completion = judge.write("because", "12").removeprefix(prefill)
        assert not judge.check(completion).strict
        assert fitted.check(completion).strict
        assert fitted.read_answer(completion) == "12"


def test_a_prefill_that_the_template_has_not_is_refused_with_the_mend() -> None:
    with pytest.raises(BadInputError, match=r"take contract\.prefill out"):
        check_tokenizer(Tokenizer(chatml("")), contract(format="r1", prefill="<think>\n"), origin="model")


def test_a_template_that_opens_the_format_unsaid_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(BadInputError, match=r'set contract\.prefill: "<think>\\n"'):
        check_tokenizer(Tokenizer(chatml("<think>\n")), contract(format="r1"), origin="model")


def test_the_hash_changes_with_everything_that_matters() -> None:
    first = default_contract().hash
    assert first == default_contract().hash
    assert len(first) == 64
    int(first, 16)
    others = [
        {"format": "r1"},
        {"answer": {"tolerance": 0.1}},
        {"answer": "text"},
        {"system_prompt": "Answer."},
        {"examples": [EXAMPLE]},
        {"prefill": "<reasoning>"},
        {"system_role": "user"},
    ]
    hashes = {contract(**other).hash for other in others}
    assert len(hashes) == len(others)
    assert first not in hashes


def test_a_contract_survives_pickling_and_its_config_json() -> None:
    judge = contract(format="r1", answer="latex", examples=[EXAMPLE])
    _ = judge.check("x"), judge.system_prompt
    assert pickle.loads(pickle.dumps(judge)).hash == judge.hash
    assert build_contract(ContractConfig.from_json(judge.config.to_json())).hash == judge.hash


@pytest.mark.parametrize(
    "config",
    [
        {"formt": "xml"},
        {"answer": {"kind": "numbers"}},
        {"answer": {"tolerance": -1}},
        {"answer": {"tolerance": float("nan")}},
        {"answer": {"choices": "abc"}},
        {"examples": [{"question": "?", "answer": "5"}]},
        {"system_role": "assistant"},
    ],
)
def test_a_mistyped_section_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContractConfig.model_validate(config)


def test_importing_and_judging_stays_light() -> None:
    code = (
        "import sys; from components.contract import default_contract; c = default_contract();"
        "assert c.equal(c.read_answer(c.write('a', '$1,250')), '1250');"
        "heavy = {'torch', 'transformers', 'sympy', 'math_verify', 'numpy', 'regex', 'jsonschema', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_real_tokenizer_renders_and_shows_its_prefill() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    judge = contract(format="r1")
    with pytest.raises(BadInputError, match="chat template"):
        judge.render(tokenizer, {"question": "How many?"})
    tokenizer.chat_template = chatml("<think>\n")
    assert judge.render(tokenizer, {"question": "How many?"}).endswith("<|im_start|>assistant\n<think>\n")
    assert judge.prefill(tokenizer) == "<think>\n"
