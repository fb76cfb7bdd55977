"""`grpo rewards` on the quickstart config, each command in a process of its own, as a person runs it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
PROGRAM = """
import sys
from components.errors import PipelineError
from pipeline.rewards_commands import rewards_app
try:
    sys.exit(rewards_app(standalone_mode=False))
except PipelineError as error:
    print(error)
    sys.exit(int(error.exit_code))
finally:
    print("MODULES", sorted({"torch", "transformers", "trl", "mlflow", "kfp", "numpy", "pydantic"} & set(sys.modules)))
"""


def grpo_rewards(*arguments, text=None, program=PROGRAM):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=text, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_module_is_light_to_import():
    program = "import sys, pipeline.rewards_commands\nprint({'pydantic', 'numpy', 'rich.console'} & set(sys.modules))"
    assert "pydantic" not in grpo_rewards(program=program).stdout


def test_the_quickstarts_rewards_pass_within_ten_seconds_and_without_torch(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = grpo_rewards("test", QUICKSTART, "--html", tmp_path / "report.html")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "three_answer_blocks" in done.stdout
    assert "torch" not in done.stdout.split("MODULES")[1]
    assert "transformers" not in done.stdout.split("MODULES")[1]
    assert "<h1>Reward smoke test</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    # The processor's time, so that a busy machine does not fail it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_a_failing_reward_ends_with_exit_code_3_and_its_findings(guide_rewards):
    use = guide_rewards["correctness"]["use"]
    setting = f"rewards={json.dumps({'mine': {'use': use, 'aspect': 'value'}})}"
    done = grpo_rewards("test", QUICKSTART, "--set", setting, "--only", "mine", "--no-table")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "mine/currency" in done.stdout
    assert "total/" not in done.stdout


def test_a_persons_own_completion_is_judged_with_reasons(tmp_path):
    path = tmp_path / "completion.txt"
    path.write_text("<reasoning>\n9 * 2\n</reasoning>\n<answer>\n$18.00\n</answer>\n", encoding="utf-8")
    done = grpo_rewards("try", QUICKSTART, "--completion", path, "--gold", "18")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$18.00 equals 18" in done.stdout
    assert "weighted total: 3.5" in done.stdout


def test_a_completion_from_standard_input_says_why_it_earns_nothing():
    done = grpo_rewards("try", QUICKSTART, "--completion", "-", "--gold", "18", text="The answer is 18.")
    assert "missing_tag" in done.stdout
    assert "read leniently" in done.stdout
    assert "weighted total: 0" in done.stdout


def test_a_reward_that_raises_shows_its_traceback(hostile):
    setting = f"rewards.mine.use={hostile('raises')['use']}"
    done = grpo_rewards("try", QUICKSTART, "--completion", "-", "--set", setting, text="anything")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: no such luck" in done.stdout


def test_a_missing_completion_file_is_one_clear_sentence(tmp_path):
    done = grpo_rewards("try", QUICKSTART, "--completion", tmp_path / "none.txt")
    assert done.returncode == 2
    assert "--completion" in done.stdout


@pytest.mark.slow
def test_sampling_shows_groups_scores_and_spread(tmp_path):
    store = f"store.uri={tmp_path / 'store'}"
    done = grpo_rewards("sample", QUICKSTART, "--prompts", "2", "--home", tmp_path / "home", "--set", store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": spread ") == 2
    assert "share of differences" in done.stdout
    assert "groups without variance" in done.stdout
