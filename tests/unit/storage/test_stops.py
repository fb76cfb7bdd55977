"""A gate that stopped a step ends its retry at once."""

import pytest

from components.errors import GateFailedError, PipelineError
from components.storage.stops import remembered_stop
from components.storage.store import open_store


def attempt(store, name, error=None):
    ran = []
    with remembered_stop(store, name, again="change the config"):
        ran.append(True)
        if error is not None:
            raise error
    return ran


def test_the_same_work_is_not_done_again_after_a_gate_stopped_it(tmp_path):
    store = open_store(str(tmp_path))
    with pytest.raises(GateFailedError, match="reward is constant$"):
        attempt(store, "smoke_tests/a", GateFailedError("reward is constant"))
    with pytest.raises(
        GateFailedError, match=r"reward is constant \(stopped so before, not run again; change the config\)"
    ):
        attempt(store, "smoke_tests/a", AssertionError("was run again"))


def test_other_inputs_run(tmp_path):
    store = open_store(str(tmp_path))
    with pytest.raises(GateFailedError):
        attempt(store, "smoke_tests/a", GateFailedError("reward is constant"))
    assert attempt(store, "smoke_tests/b") == [True]


def test_a_fault_that_may_pass_leaves_no_marker(tmp_path):
    store = open_store(str(tmp_path))
    with pytest.raises(PipelineError):
        attempt(store, "smoke_tests/a", PipelineError("the store did not answer"))
    assert attempt(store, "smoke_tests/a") == [True]
