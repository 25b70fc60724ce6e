"""Which models a torture run swaps between."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from torture.plan import Choice

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("KVCHAT_TEST_MODELS", ROOT / ".cache" / "models"))
STARTER = "SmolLM2-135M-Instruct.Q4_1.gguf"
SLIDING = "gemma-3-270m-Q4_K_M.gguf"


def choices_of(named: Sequence[Path]) -> tuple[Choice, ...]:
    """Give the models that were named, or those of the tests; the first of them with two types.

    The first counts most: it is chosen twice as often as one that comes later.
    """
    paths = [path.resolve() for path in named] or [FOLDER / STARTER, FOLDER / SLIDING]
    found = [path for path in paths if path.is_file()]
    if paths[0] not in found:
        sys.exit(f"{paths[0]} is missing: run `make test-models` first, or name one with --model")
    first, *others = (str(path) for path in found)
    return (
        Choice(first),
        Choice(first),
        Choice(first, "q8_0"),
        *(Choice(other) for other in others),
    )
