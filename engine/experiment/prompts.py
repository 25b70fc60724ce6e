"""Prompts to measure on: two built-in sets, or a JSONL file."""

import random
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from engine.experiment.arm import ExperimentError
from engine.files import expanded, is_file, read_text, reason_of
from engine.parsing import parse_json

PACKAGED = Path(__file__).resolve().parent / "prompt_sets"
SETS = ("grounded", "chat")
"""Tasks over a text that is part of the prompt, and open questions."""
PROMPTS_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One user message; the name is unique within its set."""

    set_name: str
    name: str
    text: str

    @property
    def digest(self) -> str:
        """A digest of the text; a name may get another text when its file is edited."""
        return sha256(self.text.encode()).hexdigest()[:16]


def read_sets(names: Sequence[str], n: int | None, *, seed: int) -> tuple[BenchPrompt, ...]:
    """Prompts of several sets, one set after the other."""
    sets = [read_set(name) for name in dict.fromkeys(names)]
    titles = [prompts[0].set_name for prompts in sets]
    if len(set(titles)) < len(titles):
        raise ExperimentError(
            f"two prompt sets have the same name ({', '.join(titles)}): rename one of the files"
        )
    return tuple(prompt for prompts in sets for prompt in draw(prompts, n, seed=seed))


def draw(prompts: Sequence[BenchPrompt], n: int | None, *, seed: int) -> list[BenchPrompt]:
    """`n` prompts in the order of the set, the same ones for the same seed; None is all."""
    if n is None or n >= len(prompts):
        return list(prompts)
    drawn = random.Random(seed).sample(range(len(prompts)), n)
    return [prompts[index] for index in sorted(drawn)]


def read_set(name: str) -> list[BenchPrompt]:
    """All prompts of a set, by its name or by the path of a JSONL file."""
    if name not in SETS:
        return _file(expanded(name))
    data = tomllib.loads((PACKAGED / f"{name}.toml").read_text(encoding="utf-8"))
    prompts, counts = [], Counter[str]()
    for number, each in enumerate(data["prompts"], 1):
        if name == "chat":
            prompts.append(BenchPrompt(name, f"{each['task']}-{number:02d}", each["text"].strip()))
            continue
        stem = f"{each['task']}-{each['document']}"
        counts[stem] += 1
        title = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
        document = data["documents"][each["document"]]["text"].strip()
        prompts.append(BenchPrompt(name, title, f"{each['instruction']}\n\n{document}"))
    return prompts


def _file(path: Path) -> list[BenchPrompt]:
    if not is_file(path):
        raise ExperimentError(
            f"no prompt set or file is called {str(path)!r}: use {', '.join(SETS)} or the path of "
            "a JSONL file"
        )
    named = read_jsonl(path)
    is_unique = len({name for name, _ in named}) == len(named)
    return [
        BenchPrompt(path.stem, name if is_unique else f"{index}-{name}", text)
        for index, (name, text) in enumerate(named, 1)
    ]


def read_jsonl(path: Path) -> list[tuple[str, str]]:
    """Id (else line number) and text of each line that is not blank.

    Raises:
        ExperimentError: the file cannot be read or has no lines, or a line is not JSON or has no
            text; the message names the line.
    """
    try:
        lines = read_text(path, limit=PROMPTS_BYTES).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read as prompts: {reason_of(error)}") from error
    prompts = [
        _parsed(line, number, f"{path.name}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise ExperimentError(f"{path} contains no prompts: write one JSON object on each line")
    return prompts


def _parsed(line: str, number: int, where: str) -> tuple[str, str]:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise ExperimentError(f"{where} is not JSON: {error}") from error
    text = data.get("prompt") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(text, str) and text.strip():
        return str(data.get("id", number)), text.strip()
    raise ExperimentError(f"{where} contains no text: write an object with the key `prompt`")
