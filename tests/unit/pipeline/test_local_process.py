"""What the local runner does beside KFP: forget results that are gone, settle how a run ended."""

import json

from components.errors import ExitCode
from components.storage.store import open_store
from pipeline.local_process import drop_stale_entries
from pipeline.runners import Outcome, _conclude, _note


def entry(cache, name, value):
    path = cache / f"{name}.json"
    path.write_text(json.dumps({"Output": value}))
    return path


def test_a_cached_result_whose_artifact_is_gone_is_forgotten(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    store = open_store(str(tmp_path / "store"))
    reference = store.put(tmp_path / "model", "models/a", provenance={})
    cache = tmp_path / "cache"
    cache.mkdir()
    kept, plain = entry(cache, "kept", str(reference)), entry(cache, "plain", "text")
    gone = entry(cache, "gone", str(reference).replace("models/a", "models/b"))
    drop_stale_entries(cache)
    assert (kept.exists(), plain.exists(), gone.exists()) == (True, True, False)
    store.delete("models/a")
    drop_stale_entries(cache)
    assert not kept.exists()


def outcome(tmp_path, *events, returncode=1, interrupted=False):
    found = Outcome(ExitCode.ERROR, "", "", tmp_path, interrupted=interrupted)
    for event in events:
        _note(found, event)
    _conclude(found, returncode)
    return found


def test_the_first_failure_says_how_a_run_ended(tmp_path):
    found = outcome(
        tmp_path,
        {"step": "judge_candidate", "event": "started"},
        {"step": "register_model", "event": "failed", "exit_code": 3, "message": "verdict fail"},
    )
    assert (found.exit_code, found.message, found.failed_step) == (
        ExitCode.GATE_FAILED,
        "verdict fail",
        "register_model",
    )


def test_a_step_that_dies_without_a_word_is_named(tmp_path):
    found = outcome(tmp_path, {"step": "train_grpo", "event": "started"})
    assert found.exit_code is ExitCode.ERROR
    assert "train_grpo ended without a word" in found.message


def test_a_run_without_failures_passed(tmp_path):
    assert outcome(tmp_path, {"step": "a", "event": "started"}, returncode=0).exit_code is ExitCode.PASSED


def test_an_interrupted_run_is_resumable(tmp_path):
    assert outcome(tmp_path, {"step": "a", "event": "started"}, interrupted=True).exit_code is ExitCode.RESUMABLE
