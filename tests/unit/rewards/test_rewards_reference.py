"""The pages about rewards say what the code does: the reference is fresh, and the guide's example runs."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from components.contract import default_contract
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig
from components.rewards.definition import Aspect
from components.rewards.reference import PAGE, page_text

GUIDE = (PAGE.parents[1] / "rewards.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


def test_the_reference_page_is_what_the_code_generates():
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run: python -m components.rewards.reference"


def test_the_guides_own_reward_scores_as_the_guide_says(tmp_path):
    source = next(block for block in PYTHON if block.startswith("# my_reward.py"))
    (tmp_path / "my_reward.py").write_text(source)
    entries = next(yaml.safe_load(block)["rewards"] for block in YAML if "my_reward.py" in block)
    config = RewardsConfig.model_validate(entries).resolved(tmp_path)
    reward = next(r for r in build_rewards(config, default_contract()) if r.name == "brevity")
    assert (reward.aspect, reward.weight, reward.columns) == (Aspect.LENGTH, 0.2, ("question",))
    assert reward.description == "1 up to so many words for a question, falling to 0 at twice as many"
    completions = [[{"role": "assistant", "content": "word " * count}] for count in (20, 30, 40, 20)]
    values = reward.function(prompts=[None] * 4, completions=completions, question=["Why?"] * 3 + [""])
    assert values == [1.0, 0.5, 0.0, None]


def test_the_guides_notebook_example_prints_what_it_says(capsys):
    block = next(block for block in PYTHON if "library_reward" in block)
    exec(compile(block, "rewards.md", "exec"), {})
    assert capsys.readouterr().out.strip() == re.search(r"# (\[.*\])", block)[1]


@pytest.mark.parametrize("block", YAML)
def test_every_configuration_in_the_guide_is_valid_for_the_loader_and_for_editors(block, tmp_path):
    (tmp_path / "my_reward.py").write_text("def brevity(completions): return [0.0] * len(completions)")
    entries = yaml.safe_load(block)["rewards"]
    RewardsConfig.model_validate(entries).resolved(tmp_path)
    jsonschema.validate(entries, RewardsConfig.model_json_schema())


def test_the_guide_links_to_pages_that_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (PAGE.parents[1] / Path(target)).is_file(), target
