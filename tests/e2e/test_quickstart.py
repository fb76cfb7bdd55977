"""The main job: from a config to a registered model, then again with everything reused."""

import json
import sqlite3

import pytest

pytestmark = pytest.mark.slow


def events(folder):
    runs = folder / ".grpo" / "runs"
    if not runs.exists() or not any(runs.iterdir()):
        return []
    path = sorted(runs.iterdir())[-1] / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(folder):
    return next(event["summary"] for event in events(folder) if event["event"] == "summary")


def started(folder):
    return {event["step"] for event in events(folder) if event["event"] == "started"}


def query(folder, sql):
    with sqlite3.connect(folder / ".grpo" / "mlflow.db") as database:
        return database.execute(sql).fetchall()


def test_the_quickstart_ends_with_a_registered_better_model_that_answers_in_the_format(grpo, quickstart):
    result = grpo("run", quickstart)
    assert result.returncode == 0, result.stdout + result.stderr
    found = summary(grpo.folder)
    assert found["verdict"] == "pass"
    strict = found["metrics"]["accuracy_strict"]
    assert strict["candidate"]["low"] > strict["base"]["high"]
    assert query(grpo.folder, "select name, version from model_versions where name = 'quickstart'") == [
        ("quickstart", 1)
    ]
    keys = {key for (key,) in query(grpo.folder, "select distinct key from metrics")}
    assert {
        "reward",
        "eval/base/accuracy_strict",
        "eval/candidate/accuracy_strict/low",
        "eval/delta/accuracy_strict",
    } <= keys
    merged = found["places"]["model"].removeprefix("file://")
    assert_answers_in_the_format(merged)

    again = grpo("run", quickstart)
    assert again.returncode == 0
    assert "reused: import model, prepare dataset, smoke test rewards, merge" in again.stdout
    assert started(grpo.folder) == {"train_grpo", "register_model"}
    assert query(grpo.folder, "select count(*) from model_versions where name = 'quickstart'") == [(1,)]

    other = grpo("run", quickstart, "--set", "evaluation.limit=200")
    assert other.returncode == 0
    assert started(grpo.folder) == {"train_grpo", "evaluate_holdout", "judge_candidate", "register_model"}
    assert query(grpo.folder, "select count(*) from runs") == [(1,)]


def assert_answers_in_the_format(folder):
    """The merged model, with nothing but plain transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from components.contract import default_contract

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "Ada has 46 coins. Ada buys 25 more. How many coins does Ada have now?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**ids, max_new_tokens=56, do_sample=False)
    text = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    contract = default_contract()
    assert contract.check(text).strict, text
    assert contract.read_answer(text) == "71"
