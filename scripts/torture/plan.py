"""What a process of the torture is told: where it lives, what it loads, when it dies."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from engine.cache.report import CacheSettings
from engine.configuration import Configuration, KVTypeName, SpeculationSettings
from engine.memory.units import MIB

ENVIRONMENT = "KVCHAT_TORTURE"
"""Holds the plan of the process that was started, and of the worker that it starts."""
N_CTX = 1024
N_SLOTS = 2

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
        """Give the configuration, with micro-batches of one token.

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
        """Give what the engine keeps: everything that is worth eight tokens."""
        return CacheSettings(
            folder=self.states,
            warm_bytes=self.warm_bytes,
            cold_bytes=self.cold_bytes,
            min_tokens=8,
            checkpoint_tokens=16,
            reserve_bytes=0,
        )

    def environment(self) -> dict[str, str]:
        """Give the environment of the process that lives it."""
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
    """Give the plan that this process was started with."""
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
