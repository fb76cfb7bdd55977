"""The JSON, R1 and regex formats, and XML with other names: what is strict, what is read, and why not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from components.contract import Contract, Reason, build_contract
from components.contract.config import ContractConfig
from components.contract.formats.xml_tags import XmlTags
from components.errors import BadInputError

BOX = r"\boxed{12}"
REGEX = {
    "type": "regex",
    "pattern": r"(?P<reasoning>.+)\n#### (?P<answer>[^\n]+)",
    "answer_pattern": r"#### (?P<answer>[^\n]+)",
    "template": "{reasoning}\n#### {answer}",
}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer", "minimum": 0}}, "required": ["answer"]}


def contract(**config: Any) -> Contract:
    return build_contract(ContractConfig.model_validate(config))


CONTRACTS = {
    "r1": contract(format="r1"),
    "prefilled": contract(format="r1", prefill="<think>\n"),
    "json": contract(format="json"),
    "schema": contract(format={"type": "json", "json_schema": SCHEMA}),
    "keys": contract(format={"type": "json", "reasoning_key": "why", "answer_key": "result", "extra_keys": True}),
    "regex": contract(format=REGEX),
    "tags": contract(format={"type": "xml", "reasoning_tag": "think", "answer_tag": "final.result"}),
}
# contract, completion, strict, answer read, reasons
CASES = [
    ("r1", f"<think>7+5</think>\n{BOX}", True, "12", []),
    ("r1", f"<think>7+5</think>\nThe answer is ${BOX}$.", True, "12", []),
    ("r1", f"<think>maybe {BOX}</think>{BOX}<|im_end|>", True, "12", []),
    ("r1", r"<think>a</think>\boxed{\frac{1}{2}}", True, r"\frac{1}{2}", []),
    ("r1", BOX, False, "12", ["missing_tag"]),
    ("r1", f"7+5</think>{BOX}", False, "12", ["missing_tag"]),
    ("r1", f"<think>7+5 {BOX}", False, None, ["missing_tag", "truncated"]),
    ("r1", f"<think>7+5 {BOX}</think>", False, None, ["missing_tag"]),
    ("r1", f"<think>a</think>{BOX}{BOX}", False, None, ["multiple_answers"]),
    ("r1", r"<think>a</think>\boxed{\boxed{12}}", False, None, ["multiple_answers"]),
    ("r1", r"<think>a</think>\boxed{}", False, None, ["empty"]),
    ("r1", f"<think></think>{BOX}", False, "12", ["empty"]),
    ("r1", "<think>a</think>12", False, None, ["missing_tag"]),
    ("r1", f"hi<think>a</think>{BOX}", False, "12", ["extra_text"]),
    ("r1", r"<think>a</think>\boxed{12", False, None, ["truncated"]),
    ("r1", f"<think>a</think>{BOX}<think>b", False, None, ["multiple_reasonings", "truncated", "wrong_order"]),
    ("r1", r"<think>[Your step-by-step thinking]</think>\boxed{[Final answer]}", False, None, ["placeholder"]),
    ("prefilled", f"7+5</think>\n{BOX}", True, "12", []),
    ("prefilled", f"<think>7+5</think>\n{BOX}", False, "12", ["multiple_reasonings", "truncated"]),
    ("prefilled", f"7+5{BOX}", False, None, ["missing_tag", "truncated"]),
    ("json", '{"reasoning":"7+5","answer":"12"}', True, "12", []),
    ("json", ' {"reasoning":"7+5","answer":1.50} ', True, "1.50", []),
    ("json", '{"reasoning":"a {\\"answer\\": 99} }{","answer":"12"}', True, "12", []),
    ("json", '{"reasoning":"a","answer":["1", 2.50]}', True, '["1", 2.5]', []),
    ("json", '{"reasoning":"a","answer":' + "9" * 5000 + "}", True, "9" * 5000, []),
    ("json", '```json\n{"reasoning":"7+5","answer":12}\n```', False, "12", ["extra_text"]),
    ("json", '{ {"reasoning":"a","answer":"12"}', False, "12", ["extra_text"]),
    ("json", '{"answer":"12","reasoning":"a"}', False, "12", ["wrong_order"]),
    ("json", '{"answer":"12"}', False, "12", ["missing_tag"]),
    ("json", '{"reasoning":"a"}', False, None, ["missing_tag"]),
    ("json", '{"reasoning":"a","answer":"12"}' * 2, False, None, ["extra_text", "multiple_answers"]),
    ("json", '{"reasoning":"a","answer":"12","answer":"13"}', False, None, ["multiple_answers"]),
    ("json", '{"reasoning":"a","answer":""}', False, None, ["empty"]),
    ("json", '{"reasoning":"a","answer":null}', False, None, ["empty"]),
    ("json", '{"reasoning":" ","answer":"12"}', False, "12", ["empty"]),
    ("json", '{"reasoning":"a","answer":"12"', False, None, ["truncated"]),
    ("json", '{"reasoning":"...","answer":"[Final answer]"}', False, None, ["placeholder"]),
    ("json", '{"reasoning":"a","answer":NaN}', False, None, ["invalid_json"]),
    ("json", "{'reasoning':'a','answer':'12'}", False, None, ["invalid_json"]),
    ("json", '{"Reasoning":"a","Answer":"12"}', False, None, ["invalid_json"]),
    ("json", "12", False, None, ["invalid_json"]),
    ("json", '{"reasoning":"a","answer":"12","note":1}', False, "12", ["schema"]),
    ("json", '{"reasoning":["a"],"answer":"12"}', False, "12", ["schema"]),
    ("schema", '{"reasoning":"a","answer":12}', True, "12", []),
    ("schema", '{"reasoning":"a","answer":"12"}', False, "12", ["schema"]),
    ("schema", '{"reasoning":"a","answer":-1}', False, "-1", ["schema"]),
    ("keys", '{"why":"a","sure":true,"result":"12"}', True, "12", []),
    ("keys", '{"reasoning":"a","answer":"12"}', False, None, ["invalid_json"]),
    ("regex", "7+5\n#### 12", True, "12", []),
    ("regex", "a\n#### 12\n#### 13", False, None, ["multiple_answers"]),
    ("regex", "#### 12", False, "12", ["no_match"]),
    ("regex", "a\n#### 12\nmore", False, "12", ["no_match"]),
    ("regex", "12", False, None, ["no_match"]),
    ("regex", "a\n#### [Final answer]", False, None, ["placeholder"]),
    ("regex", "...\n#### 12", False, "12", ["placeholder"]),
    ("tags", "<think>a</think><final.result>12</final.result>", True, "12", []),
    ("tags", "<think>a</think><finalXresult>12</finalXresult>", False, None, ["extra_text", "missing_tag"]),
    ("tags", "<reasoning>a</reasoning><answer>12</answer>", False, None, ["extra_text", "missing_tag"]),
]


@pytest.mark.parametrize(("name", "completion", "strict", "answer", "reasons"), CASES)
def test_completion_in_a_format(
    name: str, completion: str, strict: bool, answer: str | None, reasons: list[str]
) -> None:
    found = CONTRACTS[name].check(completion)
    assert found.strict is strict
    assert CONTRACTS[name].read_answer(completion) == answer
    assert found.lenient is (answer is not None)
    assert sorted(found.reasons) == reasons


@pytest.mark.parametrize("name", [name for name in CONTRACTS if name != "prefilled"])
def test_what_a_contract_writes_is_strict_and_read_back(name: str) -> None:
    judge = CONTRACTS[name]
    completion = judge.write("seven and five", "12")
    assert judge.check(completion).strict
    assert judge.read_answer(completion) == "12"
    assert judge.check(completion + "<|im_end|>").strict


@pytest.mark.parametrize(
    "text", ["\u200b", "\u2060\ufeff", "\u200b" * 300, "\u3164", "\u2800", "\x00", "-", "| |", "*"]
)
def test_a_block_that_shows_nothing_is_no_content(text: str) -> None:
    judge = contract()
    assert not judge.check(f"<reasoning>{text}</reasoning><answer>12</answer>").strict
    assert judge.read_answer(f"<reasoning>a</reasoning><answer>{text}</answer>") is None


@pytest.mark.parametrize("name", CONTRACTS)
def test_the_prompts_own_skeleton_is_no_response(name: str) -> None:
    judge = CONTRACTS[name]
    skeleton = judge.write("[Your step-by-step thinking]", "[Final answer]")
    assert not judge.check(skeleton).strict
    assert judge.read_answer(skeleton) is None
    assert Reason.PLACEHOLDER in judge.check(skeleton).reasons


PIECES = """<reasoning>|</reasoning>|<answer>|</answer>|12|because|...| |\n|[Final answer]|<think>|</think>|\\boxed{|{|}
|"answer":|"reasoning":|"12"|,|#### 12|</s>""".split("|")  # noqa: SIM905
PARTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(PARTS)
@settings(max_examples=400, deadline=None)
def test_strict_and_reasons_never_disagree(text: str) -> None:
    for judge in CONTRACTS.values():
        found = judge.check(text)
        assert found.strict is (not found.reasons)
        assert not found.strict or found.lenient
        assert found.lenient is (judge.read_answer(text) is not None)
        lenient = judge.read_answer(text, lenient=True)
        assert lenient is not None or not found.lenient


@given(PARTS)
@settings(max_examples=400, deadline=None)
def test_the_quick_way_of_reading_tags_agrees_with_the_careful_one(text: str) -> None:
    tags = XmlTags()

    def is_placeholder(block: str) -> bool:
        return block in ("...", "[Final answer]")

    careful = tags._read_any(text, is_placeholder)
    quick = tags._read_plain(text, is_placeholder)
    assert (quick is not None) is (not careful.reasons)
    assert quick is None or quick == careful


@pytest.mark.parametrize(
    ("format_", "said"),
    [
        ({"type": "regex", "pattern": "(", "template": "{answer}"}, "no regular expression"),
        ({"type": "regex", "pattern": "(.*)", "template": "{answer}"}, "no group named answer"),
        ({"type": "regex", "pattern": r"A: (?P<answer>.+)", "template": "B: {answer}"}, "does not match"),
        ({"type": "json", "json_schema": {"type": "nothing"}}, "no JSON Schema"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_its_field(format_: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said) as caught:
        contract(format=format_)
    assert "contract.format" in str(caught.value)


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "xml", "reasoning_tag": "<r>"},
        {"type": "xml", "answer_tag": ""},
        {"type": "xml", "answer_tag": "reasoning"},
        {"type": "json", "answer_key": "reasoning"},
        {"type": "r1", "think_tag": "a b"},
        {"type": "regex", "pattern": "(?P<answer>.+)", "template": "no gap"},
        {"type": "yaml"},
        {"type": "xml", "tag": "x"},
    ],
)
def test_a_mistyped_format_is_refused(format_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContractConfig.model_validate({"format": format_})


def test_a_pattern_that_backtracks_without_end_is_stopped() -> None:
    slow = {"type": "regex", "pattern": r"(\w|\w\w)*\n: (?P<answer>\d+)", "template": "so\n: {answer}"}
    judge = contract(format=slow)
    found = judge.check("a" * 200 + "\n: x")
    assert found.reasons == (Reason.TOO_SLOW,)
    assert not found.lenient
