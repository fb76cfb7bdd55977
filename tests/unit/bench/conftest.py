"""The benchmark runner is not installed with the package: tests find it from the repository's root."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
