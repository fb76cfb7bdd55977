"""The merge section: its defaults, its bounds, and what importing it costs."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from components.merge_lora.config import MergeConfig


def test_section_survives_its_own_json() -> None:
    section = MergeConfig(dtype="bfloat16", probes=2, tolerance=0.05)
    assert MergeConfig.from_json(section.to_json()) == section


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "int8"},
        {"probes": 0},
        {"probes": 9},
        {"tolerance": 2.0},
        {"max_shard_gib": 0},
        {"check_device": "tpu"},
        {"torch_dtype": "float32"},
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MergeConfig.model_validate(values)


def test_importing_the_section_imports_nothing_heavy() -> None:
    program = (
        "import sys, components.merge_lora.config; print(sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
