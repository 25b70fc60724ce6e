"""The benchmarks are scripts that import each other by name; so do the tests of their pure parts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
