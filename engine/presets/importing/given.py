"""What a llama-server was given, key by key, with the rest listed."""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.presets.importing.flags import FLAGS, LEGACY_DRAFT, VARIABLES, Flag

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CHOICES = frozenset({"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"})
_OFF = frozenset({"off", "0", "false", "disabled"})


@dataclass(slots=True)
class Given:
    """Values by key, as they were written; a switch is `on` or `off`."""

    values: dict[str, str] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)
    """Every `--lora`: llama-server adds them up, where other flags replace each other."""
    left_out: list[str] = field(default_factory=list)
    is_legacy: bool = False
    """Whether a name was used that builds from May 2026 on refuse."""

    def take(self, name: str, flag: Flag, value: str) -> None:
        """Keep one flag with its value."""
        self.is_legacy = self.is_legacy or name in LEGACY_DRAFT
        if flag.key == "lora":
            self.adapters.append(value)
        elif flag.key == "spec_type" and ":" in value and flag.key in self.values:
            self.values[flag.key] += f";{value}"  # ik_llama.cpp's stages add up
        elif flag.arity == "off":
            self.values[flag.key] = "off" if is_on(value) else "on"
        elif flag.arity == "on":
            self.values[flag.key] = "on" if is_on(value) else "off"
        else:
            self.values[flag.key] = value


def from_words(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Given:
    """Read arguments, which stand over the environment; the later of two wins."""
    given = Given()
    for variable, value in (environment or {}).items():
        if variable in VARIABLES:
            name = VARIABLES[variable]
            given.take(name, FLAGS[name], value)
        elif variable.startswith("LLAMA_"):
            given.left_out.append(f"{variable}={value}")
    rest = deque(words)
    while rest:
        _take_next(rest, given)
    return given


def from_pairs(pairs: Iterable[tuple[str, str]]) -> Given:
    """Read keys of a models preset: flags without dashes, or environment variables."""
    given = Given()
    for key, value in pairs:
        names = (VARIABLES.get(key, ""), f"--{key}", f"-{key}")
        name = next((name for name in names if name in FLAGS), None)
        if name is None:
            given.left_out.append(f"{key} = {value}")
        else:
            given.take(name, FLAGS[name], value)
    return given


def is_on(value: str) -> bool:
    """Whether a value switches something on."""
    return value.lower() not in _OFF


def _take_next(rest: deque[str], given: Given) -> None:
    word = rest.popleft()
    name, equals, value = word.partition("=")
    if equals and name in FLAGS and FLAGS[name].arity in ("value", "maybe"):
        rest.appendleft(value)
    else:
        name = word
    if name not in FLAGS:
        given.left_out.append(_with_value(word, rest))
        return
    flag = FLAGS[name]
    match flag.arity:
        case "on" | "off":
            given.take(name, flag, "on")
        case "maybe":
            has_value = bool(rest) and rest[0].lower() in _CHOICES
            given.take(name, flag, rest.popleft() if has_value else "on")
        case "value" if rest:
            given.take(name, flag, rest.popleft())
        case _:
            given.left_out.append(f"{name} (without a value)")


def _with_value(word: str, rest: deque[str]) -> str:
    """Give a flag that is not known with what looks like its value."""
    is_flag = word.startswith("-") and "=" not in word
    if is_flag and rest and (not rest[0].startswith("-") or _NUMBER.fullmatch(rest[0])):
        return f"{word} {rest.popleft()}"
    return word
