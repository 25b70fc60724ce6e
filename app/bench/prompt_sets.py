"""The prompts of a benchmark: built-in sets, or a JSONL file."""

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.results import BenchError
from engine.files import read_text
from engine.parsing import parse_json

PACKAGED = Path(__file__).resolve().parent / "prompts"
GROUNDED, CHAT = "grounded", "chat"
DEFAULT_SETS = (GROUNDED, CHAT)
PROMPTS_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """Which prompts to run."""

    sets: tuple[str, ...] = DEFAULT_SETS
    """Names of built-in sets, or paths of JSONL files."""
    n_prompts: int | None = None
    """Prompts of a set; None is all."""
    only: tuple[str, ...] = ()
    """Names of the prompts to run; empty draws `n_prompts`."""
    seed: int = 1
    """Of the draw."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One user message; `name` is its own within its set."""

    set_name: str
    name: str
    text: str


def read_prompts(choice: PromptChoice) -> tuple[list[BenchPrompt], ...]:
    """The chosen prompts of every set.

    Raises:
        BenchError: a set cannot be read, or two have one name.
    """
    sets = [read_set(name) for name in dict.fromkeys(choice.sets)]
    names = [prompts[0].set_name for prompts in sets]
    if len(set(names)) < len(names):
        raise BenchError(f"two prompt sets have the same name ({', '.join(names)}): rename a file")
    if choice.only:
        return _named(sets, choice.only)
    return tuple(choose(prompts, choice.n_prompts, seed=choice.seed) for prompts in sets)


def _named(sets: Sequence[list[BenchPrompt]], only: Sequence[str]) -> tuple[list[BenchPrompt], ...]:
    kept = tuple([prompt for prompt in prompts if prompt.name in only] for prompts in sets)
    missing = set(only) - {prompt.name for prompts in kept for prompt in prompts}
    if missing:
        raise BenchError(f"no set contains the prompt {', '.join(sorted(missing))}: check the name")
    return kept


def read_set(name: str) -> list[BenchPrompt]:
    """All prompts of a set, by its name or by the path of a JSONL file.

    Raises:
        BenchError: there is no such set, or its file is not valid.
    """
    match name:
        case "grounded":
            return _grounded()
        case "chat":
            return _chat()
        case _:
            return _file(Path(name).expanduser())


def choose(prompts: Sequence[BenchPrompt], n: int | None, *, seed: int) -> list[BenchPrompt]:
    """`n` drawn prompts in the order of the set, the same ones for the same seed; None is all."""
    if n is None or n >= len(prompts):
        return list(prompts)
    drawn = random.Random(seed).sample(range(len(prompts)), n)
    return [prompts[index] for index in sorted(drawn)]


def _grounded() -> list[BenchPrompt]:
    documents: dict[str, dict[str, str]] = _packaged("grounded.toml")["documents"]
    counts: dict[str, int] = {}
    prompts = []
    for each in _tasks("grounded.toml"):
        stem = f"{each['task']}-{each['document']}"
        counts[stem] = counts.get(stem, 0) + 1
        name = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
        document = documents[each["document"]]["text"].strip()
        prompts.append(BenchPrompt(GROUNDED, name, f"{each['instruction']}\n\n{document}"))
    return prompts


def _chat() -> list[BenchPrompt]:
    return [
        BenchPrompt(CHAT, f"{each['task']}-{number:02d}", each["text"].strip())
        for number, each in enumerate(_tasks("chat.toml"), 1)
    ]


def _tasks(name: str) -> list[dict[str, str]]:
    tasks: list[dict[str, str]] = _packaged(name)["prompts"]
    return tasks


def _packaged(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGED / name).read_text(encoding="utf-8"))


def _file(path: Path) -> list[BenchPrompt]:
    if not path.is_file():
        raise BenchError(
            f"no prompt set or file is called {str(path)!r}: use "
            f"{', '.join(DEFAULT_SETS)} or the path of a JSONL file"
        )
    named = read_jsonl(path)
    is_unique = len({name for name, _ in named}) == len(named)
    return [
        BenchPrompt(path.stem, name if is_unique else f"{index}-{name}", text)
        for index, (name, text) in enumerate(named, 1)
    ]


def read_jsonl(path: Path) -> list[tuple[str, str]]:
    """Name and text of every line that is not blank.

    Raises:
        BenchError: the file cannot be read or has no lines, or a line is not JSON or has no text;
            the message names the line and the keys that it has.
    """
    try:
        lines = read_text(path, limit=PROMPTS_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read as prompts: {error}") from error
    prompts = [
        (str(data.get("id", number)), _text(data, f"{path.name}, line {number}"))
        for number, line in enumerate(lines, 1)
        if line.strip()
        for data in [_object(line, f"{path.name}, line {number}")]
    ]
    if not prompts:
        raise BenchError(f"{path} contains no prompts: write one JSON object on each line")
    return prompts


def _object(line: str, where: str) -> Mapping[str, object]:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise BenchError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BenchError(f"{where} is {type(data).__name__}: write an object with a key `prompt`")
    return data


def _text(data: Mapping[str, object], where: str) -> str:
    turns = data.get("turns")
    for text in (data.get("prompt"), *(turns[:1] if isinstance(turns, list) else ())):
        if isinstance(text, str) and text.strip():
            return text.strip()
    raise BenchError(
        f"{where} contains no text, only {', '.join(data) or 'an empty object'}: write the text "
        "under `prompt`, or a list under `turns`, of which the first text is used"
    )
