"""Every reward of the library: what it pays, what it does not, and when it does not apply."""

import inspect
import time

import pytest

from components.contract import build_contract, default_contract
from components.contract.config import ContractConfig
from components.errors import BadInputError
from components.rewards import build_rewards, library_reward
from components.rewards.config import RewardsConfig
from components.rewards.definition import LIBRARY

HONEST = "<reasoning>\n7 plus 5 makes 12.\n</reasoning>\n<answer>\n12\n</answer>"
OPTIONS = {
    "length": {"maximum": 60},
    "soft_overlong_punishment": {"max_completion_length": 100, "cache": 20},
    "json_schema": {"json_schema": {"type": "object", "required": ["a"]}},
}
PURE = sorted(set(LIBRARY) - {"code_execution"})


def write(answer, reasoning="Because 7 and 5 are given, we add them."):
    return default_contract().write(reasoning, answer)


def score(name, completion, contract=None, options=None, **columns):
    reward = library_reward(name, contract, **(options or OPTIONS.get(name, {})))
    completions = [[{"role": "assistant", "content": completion}]]
    return reward.function(
        prompts=["?"], completions=completions, **{column: [value] for column, value in columns.items()}
    )[0]


@pytest.mark.parametrize("name", PURE)
def test_every_reward_takes_what_trl_passes_and_stays_in_its_range(name):
    reward = library_reward(name, **OPTIONS.get(name, {}))
    completions = [
        [{"role": "assistant", "content": text}]
        for text in (HONEST, "", "no tags", "<answer>" * 50, '<answer>{"a": [1]}</answer>', "因为七加五等于十二。" * 20)
    ]
    count = len(completions)
    values = reward.function(
        prompts=[[{"role": "user", "content": "7 + 5?"}]] * count,
        completions=completions,
        completion_ids=[list(range(90))] * count,
        answer=["12"] * count,
        question=["What is 7 + 5?"] * count,
        trainer_state=None,
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
    )
    assert reward.function.__name__ == name
    assert len(values) == count
    assert all(value is None or (reward.low <= value <= reward.high and isinstance(value, float)) for value in values)
    assert not inspect.iscoroutinefunction(reward.function)


@pytest.mark.parametrize("name", ["correctness", "exact_match", "numeric", "latex_accuracy"])
def test_without_a_gold_answer_a_value_reward_does_not_apply(name):
    assert score(name, HONEST) is None
    assert score(name, HONEST, answer=None) is None
    assert score(name, HONEST, answer="12") == 1.0


@pytest.mark.parametrize("name", ["correctness", "exact_match", "numeric", "latex_accuracy"])
@pytest.mark.parametrize(
    "completion",
    [
        "12",
        "The answer is 12.",
        "<reasoning>12</reasoning>",
        "<reasoning>it is <answer>12</answer></reasoning>",
        write("12") + "\n<answer>\n12\n</answer>",
        write("[Final answer]"),
        "",
    ],
)
def test_a_value_outside_the_one_answer_block_earns_nothing(name, completion):
    assert score(name, completion, answer="12") == 0.0


def test_correctness_is_the_contracts_equality():
    assert score("correctness", write("$1,250.00"), answer="1250") == 1.0
    assert score("correctness", write("1250 or 1251"), answer="1250") == 0.0
    assert score("correctness", write("12"), answer=12) == 1.0


def test_exact_match_takes_no_other_way_of_writing():
    assert score("exact_match", write("12.0"), answer="12") == 0.0
    assert score("exact_match", write("New\n  York"), answer="New York") == 1.0
    assert score("exact_match", write("new york"), answer="New York") == 0.0
    assert score("exact_match", write("new york"), answer="New York", options={"ignore_case": True}) == 1.0


def test_fuzzy_match_grows_with_what_agrees_and_is_1_for_equal_text_only():
    near, far = (score("fuzzy_match", write(text), answer="George Washington") for text in ("G. Washington", "Paris"))
    assert 0.0 < far < near < 1.0
    assert score("fuzzy_match", write("george  washington"), answer="George Washington") == 1.0
    assert score("fuzzy_match", write("Paris"), answer="George Washington", options={"threshold": 0.5}) == 0.0


def test_fuzzy_match_applies_to_texts_read_from_the_answer_block():
    assert score("fuzzy_match", "Paris", answer="Paris") == 0.0
    assert score("fuzzy_match", write("Paris") + write("Paris"), answer="Paris") == 0.0
    assert score("fuzzy_match", write("Paris"), answer=None) is None
    assert score("fuzzy_match", write("-1250"), answer="1250") is None


def test_fuzzy_match_over_words_is_rouge_l():
    # Longest common subsequence "the cat on the mat": 5 of 6 and 5 of 6 words.
    said = score(
        "fuzzy_match", write("the cat lay on the mat"), answer="the cat sat on the mat", options={"unit": "words"}
    )
    assert said == pytest.approx(2 * 5 / 12)


def test_numeric_has_the_tolerance_and_partial_credit_it_was_given():
    assert score("numeric", write("101"), answer="100") == 1.0
    assert score("numeric", write("101.5"), answer="100") == 0.0
    assert score("numeric", write("101"), answer="100", options={"relative": 0.0}) == 0.0
    assert score("numeric", write("0.4"), answer="0", options={"absolute": 0.5}) == 1.0
    graded = [score("numeric", write(str(n)), answer="100", options={"falloff": 0.2}) for n in (100, 105, 110, 120, 90)]
    assert graded[0] == 1.0
    assert 0.5 > graded[1] > graded[2] > graded[3] == 0.0
    assert graded[4] == graded[2]
    assert score("numeric", write("9" * 300), answer="9" * 300) == 1.0
    assert score("numeric", write("12"), answer="a poem") is None


def test_latex_accuracy_knows_equal_expressions():
    assert score("latex_accuracy", write(r"$\frac{2}{4}$"), answer=r"\frac{1}{2}") == 1.0
    assert score("latex_accuracy", write(r"x^2 + 2x + 1"), answer=r"$(x+1)^2$") == 1.0
    assert score("latex_accuracy", write(r"\frac{1}{3}"), answer=r"\frac{1}{2}") == 0.0


GAMED = {
    "three answer blocks": write("12") + "<answer>\n13\n</answer><answer>\n14\n</answer>",
    "the same block twice": write("12") + "<answer>\n12\n</answer>",
    "echoed placeholder": write("[Final answer]", "[Your step-by-step thinking]"),
    "empty tags": "<reasoning></reasoning><answer></answer>",
    "tag salad": "</reasoning><answer>12</answer><reasoning>",
    "all tags in a row": "<reasoning><answer></answer></reasoning>" * 20,
    "closing tags": "</reasoning></answer>" * 10,
    "keyword stuffing": "reasoning answer step first second therefore because final answer result " * 20,
    "upper case": "<REASONING>7+5</REASONING><ANSWER>12</ANSWER>",
    "truncated": HONEST[:-10],
    "100 kB behind": HONEST + "and so on " * 10_000,
    "100 kB of tags": "<answer>12</answer>" * 5_000,
    "100 kB of letters": "a" * 100_000,
    "nothing": "",
}


@pytest.mark.parametrize("trap", GAMED)
@pytest.mark.parametrize("name", ["strict_format", "soft_format", "incremental_format"])
def test_no_format_reward_can_be_gamed(name, trap):
    assert score(name, GAMED[trap]) < score(name, HONEST) == 1.0


@pytest.mark.parametrize("trap", sorted(set(GAMED) - {"truncated", "100 kB behind"}))
def test_incremental_format_pays_little_for_tags_without_the_rest(trap):
    assert score("incremental_format", GAMED[trap]) <= 0.4


def test_incremental_format_rises_with_every_piece_towards_the_format():
    steps = [
        "12",
        "12 </answer>",
        "<answer>\n12\n</answer>",
        "It is 12.\n</reasoning>\n<answer>\n12\n</answer>",
        "Sure!\n" + write("12"),
        write("12"),
    ]
    values = [score("incremental_format", step) for step in steps]
    assert values == sorted(set(values))
    assert values[-2] <= 0.8 < values[-1] == 1.0


PLAIN = {
    "type": "regex",
    "pattern": r"Thought: (?P<reasoning>.+)\nAnswer: (?P<answer>.+)",
    "template": "Thought: {reasoning}\nAnswer: {answer}",
}


@pytest.mark.parametrize("format", ["json", "r1", PLAIN], ids=["json", "r1", "regex"])
def test_format_rewards_follow_other_formats(format):
    contract = build_contract(ContractConfig.model_validate({"format": format}))
    honest = contract.write("7 plus 5 makes 12.", "12")
    for name in ("strict_format", "soft_format", "incremental_format"):
        assert score(name, honest, contract) == 1.0
        for broken in ("Sure! " * 40 + honest, honest[: len(honest) // 2], honest.swapcase(), "12", ""):
            assert score(name, broken, contract) < 1.0


def test_soft_format_tells_text_around_from_disorder_from_nothing():
    assert [score("soft_format", text) for text in (HONEST, "Sure!\n" + HONEST, GAMED["tag salad"], "12")] == [
        1.0, 0.7, 0.4, 0.0,
    ]  # fmt: skip


def test_json_validity_refuses_what_only_python_takes_for_json():
    values = [
        score("json_validity", write(text))
        for text in (
            '{"a": 1}',
            "[1, 2]",
            '```json\n{"a": 1}\n```',
            '{"a": NaN}',
            '{"a": 1, "a": 2}',
            "12",
            "[" * 50_000,
        )
    ]
    assert values == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_json_schema_is_graded_by_right_properties():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    texts = ('{"name": "A", "age": 3}', '{"name": "A", "age": "3"}', '{"name": 1, "age": "3"}', "[1]", "name: A")
    values = [score("json_schema", write(text), options={"json_schema": schema}) for text in texts]
    assert values == pytest.approx([1.0, 0.5, 0.2, 0.2, 0.0])


def test_length_is_1_between_its_bounds_and_falls_outside():
    sizes = (0, 5, 10, 20, 30, 40, 60)
    values = [score("length", "w " * n, options={"minimum": 10, "maximum": 20}) for n in sizes]
    assert values == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0])


def test_length_has_its_peak_at_the_ideal():
    values = [score("length", "w " * n, options={"ideal": 10}) for n in (0, 5, 10, 15, 20, 1000)]
    assert values == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, 0.0])


def test_length_counts_what_it_was_told_to():
    assert score("length", write("one two"), options={"of": "answer", "ideal": 2}) == 1.0
    assert score("length", "abcd", options={"unit": "characters", "ideal": 4}) == 1.0
    assert score("length", "abcd", options={"unit": "tokens", "ideal": 3}, completion_ids=[1, 2, 3]) == 1.0
    assert score("length", "abcd", options={"unit": "tokens", "ideal": 3}) is None


def test_soft_overlong_punishment_follows_equation_13_of_dapo():
    values = [score("soft_overlong_punishment", "", completion_ids=[0] * n) for n in (0, 80, 90, 100, 101)]
    assert values == pytest.approx([0.0, 0.0, -0.5, -1.0, -1.0])
    assert score("soft_overlong_punishment", "") is None


def test_repetition_penalty_grows_with_what_repeats():
    clean, half, full = (
        score("repetition_penalty", text)
        for text in (HONEST, "one two three four five six " * 2, "again and again " * 100)
    )
    assert 0.0 == clean > half > full > -1.0
    assert score("repetition_penalty", "a" * 10_000) < -0.99
    assert score("repetition_penalty", "好" * 100) < -0.9
    assert score("repetition_penalty", "") == 0.0


STEPS = "First, 7 apples are on the table. Then 5 more apples come from Ann. So 7 + 5 = 12 apples lie there."


def test_reasoning_steps_counts_distinct_sentences_that_say_something():
    assert score("reasoning_steps", write("12", STEPS)) == 1.0
    assert 0.0 < score("reasoning_steps", write("12", "So 7 plus 5 apples make 12.")) < 1.0
    assert score("reasoning_steps", write("12", "The same here because of apples there. " * 9)) < 0.5


@pytest.mark.parametrize(
    "stuffing",
    [
        "first second third next then so because since therefore thus hence finally step " * 30,
        "First. Second. Third. Because. Therefore. Thus. Hence. Finally.",
        "So so. Then then. Because because. Hence hence.",
        "1. \n2. \n3. \n- \n- ",
    ],
)
def test_reasoning_steps_does_not_pay_for_connectives_alone(stuffing):
    assert score("reasoning_steps", write("12", stuffing)) < score("reasoning_steps", write("12", STEPS)) / 2


def test_citation_wants_sources_that_exist_behind_statements():
    text = "The sky is blue today [1]. Grass is green in spring [2]."
    assert score("citation", text, sources=["a", "b"], options={"wanted": 2}) == 1.0
    assert score("citation", text, sources=["a"], options={"wanted": 2}) == 0.0
    assert score("citation", "[1] [2] [3]", sources=3, options={"wanted": 2}) == 0.0
    assert score("citation", "The sky is blue [1]. It is blue there [1].", sources=3, options={"wanted": 2}) == 0.5
    assert score("citation", "As Smith says, the sky is blue (Smith).", sources=["Smith"], options={
        "pattern": r"\(([A-Z]\w+)\)"}) == 1.0  # fmt: skip
    assert score("citation", "No source is named here.") == 0.0


def test_language_consistency_is_the_share_of_letters_in_the_questions_script():
    assert score("language_consistency", write("12", "Seven plus five"), question="What is it?") == 1.0
    mixed = score("language_consistency", "Because 因为七加五等于十二", question="What is it?")
    assert mixed == pytest.approx(7 / 16)
    assert score("language_consistency", "答案是十二 x y \\frac", question="七加五等于多少？") == 1.0
    assert score("language_consistency", "12", question="What is it?") == 0.0
    assert score("language_consistency", "Da da", options={"scripts": ["cyrillic"]}) == 0.0
    assert score("language_consistency", "Da da") is None


@pytest.mark.parametrize("name", PURE)
def test_a_megabyte_is_scored_in_seconds(name):
    started = time.perf_counter()
    for text in ("a" * 1_000_000, "<answer>" + "1," * 400_000 + "</answer>", "so 1 = 2. " * 50_000, "([{" * 100_000):
        score(name, text, answer="12", question="What?", completion_ids=[1] * 1000)
    assert time.perf_counter() - started < 60


def test_a_column_of_another_name_can_feed_a_reward():
    config = RewardsConfig.model_validate({"correctness": {"columns": {"answer": "gold"}}})
    reward = build_rewards(config, default_contract())[0]
    assert reward.columns == ("gold",)
    assert reward.function(prompts=["?"], completions=[HONEST], gold=["12"], answer=["13"]) == [1.0]


def test_a_completion_may_be_text_or_messages_with_blocks():
    function = library_reward("strict_format").function
    blocks = [{"role": "assistant", "content": [{"type": "text", "text": HONEST}]}]
    tool_use = [
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": HONEST},
    ]
    assert function(prompts=[None] * 4, completions=[HONEST, blocks, tool_use, []]) == [1.0, 1.0, 1.0, 0.0]


def test_an_unknown_reward_is_refused_with_the_nearest():
    with pytest.raises(BadInputError, match="did you mean 'correctness'"):
        library_reward("corectnes")


@pytest.mark.parametrize("name", LIBRARY)
def test_every_reward_describes_itself_in_one_line(name):
    definition = LIBRARY[name]
    assert 20 < len(definition.description) < 140
    assert definition.low < definition.high
    assert 0 < definition.weight <= 2.0
