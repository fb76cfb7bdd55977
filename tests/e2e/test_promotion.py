"""From two runs to a served champion: promote, ask, refuse, force, roll back, repair, refuse altered weights."""

import hashlib
import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from servers import free_port

pytestmark = pytest.mark.slow

QUICK = [
    "smoke_test.rows=3",
    "smoke_test.prompts=4",
    "training.validation_rows=8",
    # Both runs are to be registered, the bad one too: the comparison with the champion is what is tested.
    "gates.accuracy_margin=0.9",
    "gates.min_format_compliance=null",
    "gates.min_accuracy_gain=null",
    "gates.max_truncation=null",
]
BETTER = ["run.seed=42", "training.max_steps=40"]
WORSE = ["run.seed=7", "training.max_steps=4"]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def served(grpo, port):
    """`grpo promote` and friends on a port of their own; no server outlives the test."""
    yield lambda *arguments: grpo(*arguments, "--port", port)
    pid = grpo.folder / ".grpo" / "serving" / "quickstart" / "pid"
    if pid.exists():
        os.killpg(int(pid.read_text()), signal.SIGKILL)


def run(grpo, quickstart, settings):
    result = grpo("run", quickstart, *(part for setting in [*QUICK, *settings] for part in ("--set", setting)))
    assert result.returncode == 0, result.stdout + result.stderr


def query(folder, sql):
    with sqlite3.connect(folder / ".grpo" / "mlflow.db") as database:
        return database.execute(sql).fetchall()


def tag(folder, version, key):
    return query(
        folder,
        f"select value from model_version_tags where name = 'quickstart' and version = {version} and key = '{key}'",
    )[0][0]


def champion(folder):
    rows = query(folder, "select version from registered_model_aliases where alias = 'champion'")
    return str(rows[0][0]) if rows else None


def state(folder):
    return json.loads((folder / ".grpo" / "serving" / "quickstart" / "state.json").read_text())


def log(grpo):
    result = grpo("history", "quickstart", "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def recorded(folder, version):
    """50 rows of a version's evaluation, chosen by another rule than the probe's."""
    import pyarrow.parquet as parquet

    place = Path(tag(folder, version, "evaluation.reference").partition("@")[0].removeprefix("file://"))
    rows = parquet.read_table(place / "samples.parquet").to_pylist()
    return sorted(rows, key=lambda row: hashlib.md5(row["id"].encode()).hexdigest())[:50]


def verdicts_of(port, rows):
    """What the official client gets for the bare questions, as (in the format, right)."""
    from openai import OpenAI

    from components.contract import default_contract

    contract = default_contract()
    found = []
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-") as client:
        for row in rows:
            question = [{"role": "user", "content": row["question"]}]
            reply = client.chat.completions.create(model="quickstart", messages=question, temperature=0, max_tokens=56)
            text = reply.choices[0].message.content
            strict = contract.check(text).strict
            right = strict and contract.equal(contract.read_answer(text), row["gold"])
            found.append((strict, right))
    return found


def test_what_is_promoted_is_served_and_everything_can_be_taken_back(grpo, quickstart, served, port):
    folder = grpo.folder
    run(grpo, quickstart, BETTER)
    run(grpo, quickstart, WORSE)
    compared = grpo("compare")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "max_steps" in compared.stdout
    assert tag(folder, 1, "prompt") == "quickstart-system-prompt/1"
    assert tag(folder, 2, "prompt") == "quickstart-system-prompt/1"
    card = Path(tag(folder, 1, "card.reference").partition("@")[0].removeprefix("file://")) / "README.md"
    assert "grpo serve quickstart" in card.read_text()

    # Promote the better.
    result = served("promote", "quickstart/1", "--by", "ada", "--reason", "the first")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "served by" in result.stdout or "transformers" in result.stdout
    assert champion(folder) == "1"
    rows = recorded(folder, 1)
    expected = [(row["strict"], row["correct_strict"]) for row in rows]
    found = verdicts_of(port, rows)
    differing = sum(one != other for one, other in zip(expected, found, strict=True))
    assert differing == 0, f"{differing} of 50"

    chatted = grpo("chat", "quickstart", "-m", rows[0]["question"], "--temperature", "0", "--max-tokens", "56")
    assert chatted.stdout.strip() == rows[0]["completion"].strip()

    # Promote the worse: refused; forced: done and logged; taken back.
    refused = served("promote", "quickstart/2")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "quickstart/2" in refused.stderr
    assert champion(folder) == "1"
    assert state(folder)["version"] == "1"
    forced = served("promote", "quickstart/2", "--force", "to see it", "--by", "grace")
    assert forced.returncode == 0, forced.stdout + forced.stderr
    assert (champion(folder), state(folder)["version"]) == ("2", "2")
    assert (log(grpo)[-1]["forced"], log(grpo)[-1]["by"]) == ("to see it", "grace")
    back = grpo("rollback", "quickstart", "--reason", "seen")
    assert back.returncode == 0, back.stdout + back.stderr
    assert (champion(folder), state(folder)["version"]) == ("1", "1")
    assert [(entry["action"], entry["version"]) for entry in log(grpo)] == [
        ("promoted", "1"),
        ("promoted", "2"),
        ("rolled back", "1"),
    ]

    again = grpo("evaluate", "quickstart/1", "--like", "quickstart/2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "accuracy_strict" in again.stdout

    # Killed while the new server starts: the next command puts everything back.
    process = grpo.start("promote", "quickstart/2", "--force", "again", "--port", port)
    for line in process.stdout:
        if line.startswith("wait"):
            process.kill()
            break
    process.wait()
    assert champion(folder) == "2"
    assert log(grpo)[-1]["action"] == "undone"
    assert (champion(folder), state(folder)["version"]) == ("1", "1")
    assert verdicts_of(port, rows[:5]) == expected[:5]

    # One byte of the weights altered: promote and serve name the file.
    weights = Path(tag(folder, 2, "weights.reference").partition("@")[0].removeprefix("file://")) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for command in (("promote", "quickstart/2", "--force", "no"), ("serve", "quickstart/2")):
        altered = served(*command)
        assert altered.returncode == 1
        assert "model.safetensors" in altered.stderr
    assert champion(folder) == "1"
