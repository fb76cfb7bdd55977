"""Bad input is refused with one clear sentence and exit code 2, and nothing is left behind."""

import json
import os
import shutil
import subprocess

import pytest
import yaml

GOOD = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(10, 40) for b in range(2, 12)]


@pytest.fixture
def config(tmp_path, quickstart):
    """Writes a config beside its data, changed as a test wants."""

    def write(**sections):
        values = yaml.safe_load(quickstart.read_text())
        values["model"]["source"] = str(quickstart.parent / "quickstart" / "model")
        values["data"] = {"train": "rows.jsonl", "max_prompt_tokens": 200}
        for name, section in sections.items():
            values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write


def rows(path, content):
    path.write_text("".join(json.dumps(row) + "\n" for row in content))


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(grpo, *arguments):
    """The one message of a refusal, after checking that nothing was left behind."""
    before = listing(grpo.folder)
    result = grpo("run", *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert listing(grpo.folder) == before
    return " ".join((result.stdout + result.stderr).split())


def test_a_misspelt_key(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    assert "trainin: there is no such key; did you mean 'training'?" in refused(grpo, config(trainin={"a": 1}))


def test_a_wrong_type(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    assert "training.max_steps: 'many' is str, not int" in refused(grpo, config(training={"max_steps": "many"}))


def test_a_missing_file(grpo, config):
    assert "rows.jsonl does not exist" in refused(grpo, config())


def test_g_that_does_not_divide(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    message = refused(grpo, config(training={"num_generations": 7, "per_device_train_batch_size": 32}))
    assert "num_generations" in message or "per_device_train_batch_size" in message


def test_an_unknown_reward(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    assert "did you mean 'correctness'" in refused(grpo, config(rewards={"corectness": 1.0}))


def test_an_mlflow_that_does_not_answer(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    message = refused(grpo, config(tracking={"uri": "http://127.0.0.1:9"}))
    assert "tracking.uri: MLflow at http://127.0.0.1:9 does not answer" in message


def test_a_store_that_is_not_writable(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    (grpo.folder / "taken").write_text("a file where the store should be")
    assert "taken" in refused(grpo, config(store={"uri": str(grpo.folder / "taken" / "store")}))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root to mount a small disk")
def test_no_space_left(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    path = config()
    disk = grpo.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let a test mount a disk")
    try:
        message = refused(type(grpo)(disk), path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert "MiB are free" in message


@pytest.mark.slow
def test_an_empty_dataset(grpo, config):
    (grpo.folder / "rows.jsonl").write_text("")
    assert "rows.jsonl" in refused(grpo, config())


@pytest.mark.slow
def test_a_csv_with_a_bad_row(grpo, config):
    lines = ["question,answer"] + [f"{row['question']},{row['answer']}" for row in GOOD]
    lines[7] += ",one field too many"
    (grpo.folder / "rows.csv").write_text("\n".join(lines) + "\n")
    message = refused(grpo, config(data={"train": "rows.csv"}))
    assert "rows.csv" in message
    assert "8" in message


@pytest.mark.slow
def test_a_row_without_gold(grpo, config):
    rows(grpo.folder / "rows.jsonl", [*GOOD[:5], {"question": "What is 1 plus 1?", "answer": ""}, *GOOD[5:]])
    assert "answer" in refused(grpo, config())


@pytest.mark.slow
def test_a_holdout_that_overlaps_train(grpo, config):
    rows(grpo.folder / "rows.jsonl", GOOD)
    rows(
        grpo.folder / "holdout.jsonl",
        [*GOOD[:3], *({"question": f"{r['question']} ?!x", "answer": "1"} for r in GOOD[:9])],
    )
    assert "holdout" in refused(grpo, config(data={"holdout": "holdout.jsonl"}))


@pytest.mark.slow
def test_a_model_folder_without_weights(grpo, config, quickstart):
    rows(grpo.folder / "rows.jsonl", GOOD)
    folder = grpo.folder / "model"
    shutil.copytree(quickstart.parent / "quickstart" / "model", folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    assert "model" in refused(grpo, config(model={"source": str(folder)}))
