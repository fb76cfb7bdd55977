"""What the quickstart ships is what its script makes, and its holdout is fresh."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED = CONFIGS / "quickstart"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_quickstart", CONFIGS / "make_quickstart.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shipped_rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SHIPPED / "data" / f"{name}.jsonl").read_text().splitlines()]


def test_shipped_data_are_what_the_script_writes(script: ModuleType, tmp_path: Path) -> None:
    script.write_data(tmp_path)
    for name in ("train.jsonl", "holdout.jsonl"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / "data" / name).read_bytes()


def test_every_row_has_a_question_and_a_whole_number(script: ModuleType) -> None:
    assert len(shipped_rows("holdout")) == script.HOLDOUT_ROWS >= 500
    assert len(shipped_rows("train")) == script.TRAIN_ROWS
    for row in shipped_rows("train") + shipped_rows("holdout"):
        assert set(row) == {"question", "answer", "solution"}
        assert re.fullmatch(r"\d+", row["answer"])
        assert not re.search(r"[{}]|  ", row["question"])


def test_no_question_is_there_twice() -> None:
    questions = [row["question"] for row in shipped_rows("train") + shipped_rows("holdout")]
    assert len(set(questions)) == len(questions)


def test_answers_follow_from_the_numbers_in_the_text() -> None:
    for row in shipped_rows("holdout"):
        first, *others = (int(number) for number in re.findall(r"\d+", row["question"]))
        reachable = {first}
        for number in others:
            reachable = {value for known in reachable for value in (known + number, known - number, number - known)}
        assert int(row["answer"]) in reachable, row


def check_pairs(script: ModuleType, chats: int, drills: int) -> None:
    held_out = {pair for problem in script.holdout_problems() for pair in problem.pairs}
    assert len(held_out) > 400
    assert held_out <= set(script.split_pairs()[1])
    for problem in script.train_problems():
        assert held_out.isdisjoint(problem.pairs)
    for chat in script.supervised_chats(chats):
        assert held_out.isdisjoint(chat.problem.pairs)
    for chat in script.drill_chats(drills):
        assert held_out.isdisjoint(chat.problem.pairs)


def test_holdout_pairs_are_in_neither_training_set(script: ModuleType) -> None:
    """The supervised stream by its beginning; the slow test reads all of it."""
    check_pairs(script, 3000, 3000)


@pytest.mark.slow
def test_holdout_pairs_are_nowhere_in_the_supervised_stream(script: ModuleType) -> None:
    check_pairs(script, script.CHAT_STEPS * script.CHAT_BATCH, script.DRILL_STEPS * script.DRILL_BATCH)


def test_pairs_read_from_the_shipped_text_are_disjoint_too(script: ModuleType) -> None:
    """The check above trusts the generator's own record; this one reads one-step questions as anybody would."""

    def pairs(name: str) -> set[tuple[int, int]]:
        numbers = [[int(n) for n in re.findall(r"\d+", row["question"])] for row in shipped_rows(name)]
        return {script.pair_of(*found) for found in numbers if len(found) == 2}

    assert len(pairs("holdout")) > 300
    assert pairs("holdout").isdisjoint(pairs("train"))


def test_a_step_is_a_true_sum_of_operands_in_range(script: ModuleType) -> None:
    for problem in script.train_problems():
        for left, sign, right, result in problem.steps:
            assert result == (left + right if sign == "+" else left - right) > 0
            assert script.LOWEST <= right <= script.HIGHEST
            assert script.LOWEST <= left <= script.HIGHEST


def test_sizes_stay_small() -> None:
    assert sum(path.stat().st_size for path in (SHIPPED / "data").iterdir()) < 1_500_000
    assert (SHIPPED / "model" / "model.safetensors").stat().st_size < 4_000_000


def test_every_shipped_file_has_the_sha256_recorded_for_it() -> None:
    recorded = json.loads((SHIPPED / "made.json").read_text())["sha256"]
    found = {
        path.relative_to(SHIPPED).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in ("data", "model")
        for path in (SHIPPED / part).rglob("*")
        if path.is_file()
    }
    assert found == recorded


def test_the_strict_style_of_the_supervised_stream_is_the_contracts(script: ModuleType) -> None:
    from components.contract import build_contract
    from components.contract.config import ContractConfig

    contract = build_contract(ContractConfig(system_prompt=script.SYSTEM_PROMPT))
    chats = list(script.supervised_chats(1000))
    strict = [chat for chat in chats if contract.check(chat.reply).strict]
    assert 0.2 < len(strict) / len(chats) < 0.4
    readable = [contract.read_answer(chat.reply, lenient=True) for chat in chats]
    right = sum(contract.equal(answer, str(chat.problem.answer)) for answer, chat in zip(readable, chats, strict=True))
    assert right / len(chats) > 0.9


def test_the_tokenizer_keeps_tags_whole_and_digits_single(script: ModuleType) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHIPPED / "model" / "tokenizer.json"))
    text = "<reasoning>34 + 128 = 162</reasoning>\n<answer>162</answer>"
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == text
    for tag in script.TAGS:
        assert encoding.tokens.count(tag) == 1
    digits = [token for token in encoding.tokens if any(character.isdigit() for character in token)]
    assert digits == list("34128162162")


def test_the_tokenizer_reads_back_any_text() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHIPPED / "model" / "tokenizer.json"))
    for text in ("Zoë ate 3½ crêpes — «done»\t\n\n🎉", "plain words, nothing else", " leading and trailing "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_control_tokens_are_skipped_in_decoding(script: ModuleType) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHIPPED / "model" / "tokenizer.json"))
    for token in script.CONTROL:
        (token_id,) = tokenizer.encode(token, add_special_tokens=False).ids
        assert tokenizer.decode([token_id], skip_special_tokens=True) == ""


def test_the_chat_template_renders_what_the_model_was_trained_on(script: ModuleType) -> None:
    import jinja2

    template = jinja2.Template((SHIPPED / "model" / "chat_template.jinja").read_text())
    chat = next(chat for chat in script.supervised_chats(20) if len(chat.messages) == 2)
    rendered = template.render(messages=chat.messages, add_generation_prompt=True)
    assert rendered == script.prompt_text(chat.messages)
    assert template.render(messages=chat.messages) == rendered.removesuffix("<|assistant|>")
    assert script.SYSTEM_PROMPT in rendered


def test_the_quickstart_config_asks_with_the_prompt_the_model_knows(script: ModuleType) -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())
    assert config["contract"]["system_prompt"] == script.SYSTEM_PROMPT


def test_the_model_card_names_the_licence() -> None:
    assert "license: apache-2.0" in (SHIPPED / "model" / "README.md").read_text()
