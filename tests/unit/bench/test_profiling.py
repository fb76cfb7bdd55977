"""What is made of a profiler's samples."""

import pytest

from bench import profiling
from bench.profiling import NoProfilerError, profile, shares


def test_shares_are_inclusive_and_imports_are_one_entry():
    samples = (
        "<module> (a/run.py:3);train (x/y/trl/trainer.py:10);forward (torch/nn/linear.py:5) 6\n"
        "<module> (a/run.py:3);train (x/y/trl/trainer.py:99) 2\n"
        "<module> (a/run.py:1);_find_and_load (<frozen importlib._bootstrap>:11);<module> (torch/__init__.py:1) 2\n"
        "noise\n"
    )

    assert shares(samples) == [
        {"function": "train (trl/trainer.py)", "share": 0.8},
        {"function": "forward (nn/linear.py)", "share": 0.6},
        {"function": "imports", "share": 0.2},
    ]


def test_a_function_called_by_itself_counts_once():
    assert shares("walk (a/b.py:1);walk (a/b.py:1) 3\nother (a/b.py:9) 1\n")[0]["share"] == 0.75


def test_without_py_spy_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling.shutil, "which", lambda name: None)

    with pytest.raises(NoProfilerError, match="pip install py-spy"):
        profile(["true"], environment={}, folder=tmp_path, scratch=tmp_path)
