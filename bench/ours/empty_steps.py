"""The same N empty steps through this project's runner: its process, its cache, its events, the graph compiled.

The graph is the only thing replaced. python bench/ours/empty_steps.py N FOLDER
"""

import json
import os
import sys
from pathlib import Path

from kfp import dsl

import pipeline.graph
from components.steps import EVENTS_VARIABLE
from pipeline import local_process
from pipeline.config import load_config
from pipeline.submission import prepare_submission

count, folder = int(sys.argv[1]), Path(sys.argv[2])


@dsl.component(base_image="python", install_kfp_package=False)
def empty(text: str) -> str:
    """Do nothing, as a step."""
    from components.steps import step

    with step("empty"):
        return text


@dsl.pipeline(name="empty-steps")
def steps(start: str) -> str:
    """One after the other."""
    text = start
    for _ in range(count):
        text = empty(text=text).output
    return text


def build(*arguments: object, **settings: object) -> object:
    """The empty graph in place of the real one."""
    return steps


folder.mkdir(parents=True)
config = load_config(Path(__file__).parent.parent.parent / "configs" / "quickstart.yaml")
prepare_submission(config, folder, cache=folder / "cache", caching=True, inputs=lambda _: "")
submission = folder / "submission.json"
values = json.loads(submission.read_text(encoding="utf-8"))
submission.write_text(json.dumps(values | {"arguments": {"start": "start"}}), encoding="utf-8")
(folder / "events.jsonl").touch()
os.environ[EVENTS_VARIABLE] = str(folder / "events.jsonl")
pipeline.graph.build_pipeline = build
sys.exit(local_process.main(folder))
