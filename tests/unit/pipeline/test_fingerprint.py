"""A fingerprint changes with what a step runs, and with nothing else."""

import shutil

import pytest

from pipeline import fingerprint
from pipeline.fingerprint import ROOMS, code_fingerprint, files_fingerprint
from pipeline.runners import STEP_ORDER


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of components/ that a test may change."""
    shutil.copytree(fingerprint.COMPONENTS, tmp_path / "components", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint, "COMPONENTS", tmp_path / "components")
    code_fingerprint.cache_clear()
    yield tmp_path / "components"
    code_fingerprint.cache_clear()


def fingerprints():
    code_fingerprint.cache_clear()
    return {step: code_fingerprint(step) for step in STEP_ORDER}


def changed_by(path):
    before = fingerprints()
    path.write_text(path.read_text() + "\n# changed\n")
    after = fingerprints()
    return {step for step in STEP_ORDER if before[step] != after[step]}


def test_every_step_has_its_rooms():
    assert set(ROOMS) == {*STEP_ORDER, "choose_winner"}


def test_a_steps_own_code_changes_it_alone(copied):
    assert changed_by(copied / "merge_lora" / "merge.py") == {"merge_lora"}


def test_a_shared_room_changes_the_steps_that_use_it(copied):
    assert changed_by(copied / "rewards" / "build.py") == {"smoke_test_rewards", "train_grpo", "evaluate_holdout"}


def test_what_is_logged_costs_no_training(copied):
    assert changed_by(copied / "tracking" / "runs.py") == {"register_model"}


def test_a_readme_changes_nothing(copied):
    assert changed_by(copied / "merge_lora" / "README.md") == set()


def test_equal_files_elsewhere_have_equal_fingerprints(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("{}\n")
    assert files_fingerprint([tmp_path / "a"]) == files_fingerprint([tmp_path / "b"])
    (tmp_path / "b" / "rows.jsonl").write_text("{} \n")
    assert files_fingerprint([tmp_path / "a"]) != files_fingerprint([tmp_path / "b"])
