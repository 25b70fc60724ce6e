"""What a process of the torture is told, what it loads, and the journal of what it does."""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from engine.cache.report import CacheSettings
from engine.configuration import Configuration, KVTypeName, SpeculationSettings
from engine.memory.units import MIB

ENVIRONMENT = "KVCHAT_TORTURE"
"""Holds the plan of the process that was started, and of the worker that it starts."""
N_CTX = 1024
N_SLOTS = 2
ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("KVCHAT_TEST_MODELS", ROOT / ".cache" / "models"))
STARTER = "SmolLM2-135M-Instruct.Q4_1.gguf"
SLIDING = "gemma-3-270m-Q4_K_M.gguf"


Moment = Literal[
    "none",
    "snapshot is opened",
    "snapshot is renamed",
    "snapshot is read",
    "snapshot is removed",
    "index commits",
    "chat commits",
]
Victims = Literal["worker", "app", "both"]
Sabotage = Literal["none", "state", "commit", "draft", "crash", "traceback", "stay", "build"]
"""What is broken on purpose, so that a check can be seen to fail; `build` breaks nothing, but says
that it is another build of llama.cpp."""
Line: TypeAlias = dict[str, object]
"""`kind`, `at` in nanoseconds of a clock that all processes share, and what the kind has."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The `nth` time that something happens, who dies, and how long after."""

    moment: Moment = "none"
    nth: int = 1
    delay_s: float = 0.0
    """0 kills before it goes on."""
    victims: Victims = "worker"


@dataclass(frozen=True, slots=True)
class Choice:
    """A model and its type of keys and values: states of one are no states of another."""

    model: str
    kv: KVTypeName = "f16"

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{Path(self.model).stem.split('-')[0]} {self.kv}"

    def configuration(self) -> Configuration:
        """The configuration, with micro-batches of one token.

        Then llama.cpp computes each token as it computes it alone, so a text cannot depend on how
        the prompt was cut into batches, and a restored one must be the same to the bit. Both ways
        of attention are there, with a table of scores and with flash attention, which packed
        values need.
        """
        return Configuration(
            model_path=Path(self.model),
            n_ctx=N_CTX * N_SLOTS,
            n_ubatch=1,
            type_k=self.kv,
            type_v=self.kv,
            flash_attention="off" if self.kv == "f16" else "auto",
            n_slots=N_SLOTS,
            n_threads=1,
            speculation=SpeculationSettings(lookup_pattern_min=1, suffix_min_confidence=0.2),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One life of the application."""

    home: str
    journal: str
    seed: int
    choices: tuple[Choice, ...]
    aim: Aim = field(default_factory=Aim)
    n_steps: int = 4
    warm_bytes: int = 24 * MIB
    """Little, so that states leave and come back."""
    cold_bytes: int = 96 * MIB
    sabotage: Sabotage = "none"

    @property
    def states(self) -> Path:
        """Folder of the cold tier."""
        return Path(self.home) / "cache" / "states"

    @property
    def database(self) -> Path:
        """File of the chats."""
        return Path(self.home) / "data" / "chats.db"

    @property
    def worker_log(self) -> Path:
        """Log of the engine's process."""
        return Path(self.home) / "state" / "worker.log"

    def cache_settings(self) -> CacheSettings:
        """What the engine keeps: everything that is worth eight tokens."""
        return CacheSettings(
            folder=self.states,
            warm_bytes=self.warm_bytes,
            cold_bytes=self.cold_bytes,
            min_tokens=8,
            checkpoint_tokens=16,
            reserve_bytes=0,
        )

    def environment(self) -> dict[str, str]:
        """The environment of the process that lives it."""
        paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        home = Path(self.home)
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            ENVIRONMENT: json.dumps(asdict(self)),
            **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "STATE", "CACHE")},
            "XDG_CONFIG_HOME": str(home / "config"),
        }


def plan_of_environment() -> Plan:
    """The plan that this process was started with."""
    return plan_of(json.loads(os.environ[ENVIRONMENT]))


def plan_of(spelled: dict[str, object]) -> Plan:
    """Read a plan that was spelled by `asdict`."""
    fields = dict(spelled)
    aim, choices = fields.pop("aim"), fields.pop("choices")
    assert isinstance(aim, dict)
    assert isinstance(choices, list)
    return Plan(
        aim=Aim(**aim),
        choices=tuple(Choice(**choice) for choice in choices),
        **fields,  # type: ignore[arg-type]  # the fields of a plan
    )


def choices_of(named: Sequence[Path]) -> tuple[Choice, ...]:
    """The models that were named, or those of the tests; the first of them with two types.

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


class Journal:
    """Writes lines to a file that others read along; from any thread."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def tell(self, kind: str, **values: object) -> None:
        """Add a line; it is in the system's hands when this returns."""
        line = {"kind": kind, "at": time.monotonic_ns(), **values}
        spelled = json.dumps(line).encode() + b"\n"
        with self._lock:
            while spelled:
                spelled = spelled[os.write(self._handle, spelled) :]


class Reader:
    """Gives the whole lines of a journal that were added since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[Line]:
        """Give them; the beginning of a line that a kill cut is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
