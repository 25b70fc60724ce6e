"""The walker is a package among the scripts, so its tests find it there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
