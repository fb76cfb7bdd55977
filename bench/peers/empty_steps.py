"""A pipeline of N empty steps, each after the other, by KFP's own local runner as its documentation shows it.

python bench/peers/empty_steps.py N FOLDER
"""

import sys

from kfp import dsl, local

count, folder = int(sys.argv[1]), sys.argv[2]


@dsl.component(base_image="python", install_kfp_package=False)
def empty(text: str) -> str:
    """Do nothing."""
    return text


@dsl.pipeline(name="empty-steps")
def steps() -> str:
    """One after the other."""
    text = "start"
    for _ in range(count):
        text = empty(text=text).output
    return text


local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=folder)
task = steps()
assert task.output == "start"
