"""The prompts that a benchmark runs: built-in sets, HumanEval if it is installed, or a file."""

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.errors import BenchError
from app.bench.human_eval import read_human_eval
from app.bench.jsonl import read_jsonl

PACKAGED = Path(__file__).resolve().parent / "prompts"
GROUNDED, CHAT, HUMAN_EVAL = "grounded", "chat", "humaneval"
NAMES = (GROUNDED, CHAT, HUMAN_EVAL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message; `name` is its own within its set."""

    set_name: str
    name: str
    text: str


def read_set(name: str) -> list[Prompt]:
    """Give all prompts of a set, by its name or by the path of a JSONL file.

    Raises:
        BenchError: there is no such set, its package is not installed, or its file is not valid.
    """
    match name:
        case "grounded":
            return _grounded()
        case "chat":
            return _chat()
        case "humaneval":
            return [Prompt(name, *pair) for pair in read_human_eval()]
        case _:
            return _file(Path(name).expanduser())


def choose(prompts: Sequence[Prompt], n: int | None, *, seed: int) -> list[Prompt]:
    """Draw `n` prompts, in the order of the set; the same ones for the same seed. None is all."""
    if n is None or n >= len(prompts):
        return list(prompts)
    drawn = random.Random(seed).sample(range(len(prompts)), n)
    return [prompts[index] for index in sorted(drawn)]


def _file(path: Path) -> list[Prompt]:
    if not path.is_file():
        raise BenchError(
            f"there is no prompt set and no file {str(path)!r}: the sets are {', '.join(NAMES)}; "
            "anything else is the path of a JSONL file"
        )
    named = read_jsonl(path)
    is_unique = len({name for name, _ in named}) == len(named)
    return [
        Prompt(path.stem, name if is_unique else f"{index}-{name}", text)
        for index, (name, text) in enumerate(named, 1)
    ]


def _grounded() -> list[Prompt]:
    documents: dict[str, dict[str, str]] = _packaged("grounded.toml")["documents"]
    counts: dict[str, int] = {}
    prompts = []
    for each in _tasks("grounded.toml"):
        stem = f"{each['task']}-{each['document']}"
        counts[stem] = counts.get(stem, 0) + 1
        name = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
        document = documents[each["document"]]["text"].strip()
        prompts.append(Prompt(GROUNDED, name, f"{each['instruction']}\n\n{document}"))
    return prompts


def _chat() -> list[Prompt]:
    return [
        Prompt(CHAT, f"{each['task']}-{number:02d}", each["text"].strip())
        for number, each in enumerate(_tasks("chat.toml"), 1)
    ]


def _tasks(name: str) -> list[dict[str, str]]:
    tasks: list[dict[str, str]] = _packaged(name)["prompts"]
    return tasks


def _packaged(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGED / name).read_text(encoding="utf-8"))
