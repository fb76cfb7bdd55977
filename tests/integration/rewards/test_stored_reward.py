"""A person's own reward travels: stored at submission, fetched and checked where it runs."""

from pathlib import Path

import pytest

from components.contract.config import ContractConfig
from components.errors import BadInputError, PipelineError
from components.rewards.config import RewardsConfig, StoredCode, file_sha256
from components.rewards.guard import RewardGuard
from components.storage.store import open_store

SOURCE = "def brevity(completions, **kwargs):\n    return [1.0 / (1 + len(c[0]['content'])) for c in completions]\n"


@pytest.fixture
def submitted(tmp_path):
    """A config whose reward file is in the store, and gone from where it was written."""
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "my_reward.py"
    path.write_text(SOURCE)
    config = RewardsConfig.model_validate({"correctness": 2.0, "brevity": "my_reward.py:brevity"}).resolved(path.parent)
    reference = open_store(str(tmp_path / "store")).put(path.parent, "rewards/1", provenance={"kind": "reward"})
    stored = StoredCode(reference=str(reference), file=path.name, sha256=file_sha256(path))
    path.unlink()
    changed = config.rewards()["brevity"].model_copy(update={"stored": stored})
    return config.with_rewards({"brevity": changed}), tmp_path / "store"


def test_it_runs_from_the_store_under_its_name_without_the_file_it_came_from(submitted):
    config, _ = submitted
    with RewardGuard(RewardsConfig.from_json(config.to_json()), ContractConfig()) as guard:
        scores = guard.score([None], ["abc"], {"answer": ["12"]})
        assert [function.__name__ for function in guard.functions()] == ["brevity", "correctness"]
    assert scores.values == {"brevity": [0.25], "correctness": [0.0]}


def test_a_stored_file_that_was_changed_is_not_run(submitted):
    config, store = submitted
    for path in Path(store).rglob("my_reward.py"):
        path.write_text(SOURCE.replace("1.0", "9.9"))
    with pytest.raises((BadInputError, PipelineError)), RewardGuard(config, ContractConfig()):
        pass


def test_a_stored_file_that_is_not_the_one_submitted_is_not_run(submitted):
    config, _ = submitted
    entry = config.rewards()["brevity"]
    wrong = entry.model_copy(update={"stored": entry.stored.model_copy(update={"sha256": "0" * 64})})
    with (
        pytest.raises(BadInputError, match="not the file that was submitted"),
        RewardGuard(config.with_rewards({"brevity": wrong}), ContractConfig()),
    ):
        pass
