"""The benchmarks are scripts that import each other by name, so their tests find them by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
