"""The command line answers at once: importing it pulls in nothing heavy."""

import subprocess
import sys

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "mlflow",
    "kfp",
    "datasets",
    "numpy",
    "pandas",
    "pyarrow",
    "boto3",
    "sympy",
)


def test_importing_the_command_line_imports_nothing_heavy():
    code = f"import sys, pipeline.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
