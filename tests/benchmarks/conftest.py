"""The benchmarks are scripts that import each other by name; their pure parts are tested so, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
