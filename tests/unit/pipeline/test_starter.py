"""`grpo init` writes a starting point that is valid as it is, and overwrites nothing."""

import pytest

from components.errors import BadInputError
from pipeline.config import load_config
from pipeline.starter import write_starter


def test_the_starter_is_a_valid_config(tmp_path):
    written = write_starter(tmp_path / "my-run")
    assert [path.name for path in written] == ["run.yaml", "rewards.py", "data.jsonl"]
    config = load_config(tmp_path / "my-run" / "run.yaml")
    assert config.run.name == "my-run"
    assert config.data.local_files()
    assert set(config.rewards.rewards()) == {"correctness", "strict_format", "brevity"}


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInputError, match="nothing is overwritten"):
        write_starter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
