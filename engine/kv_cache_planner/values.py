"""What a planner tells: an event, and an estimate."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.configuration import Configuration
from engine.memory.estimate import Estimate


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """What subscribers are told."""

    before: Configuration
    after: Configuration
    changed: tuple[str, ...]
    """Names of the fields that differ."""


@dataclass(frozen=True, slots=True)
class CacheEstimate:
    """What a configuration costs, and what to do about it."""

    kv_bytes: int
    """Keys and values of all slots, on all devices."""
    state_bytes: int
    """Recurrent state, which does not grow with the context."""
    bytes_per_token: float
    """Cache that one more token of context takes here."""
    gpu_bytes: int
    cpu_bytes: int
    fits: bool
    """Whether every device keeps the margin free."""
    recommendation: str
    """One sentence for the user."""
    whole: Estimate
    """Every term of every device, with its source."""

    @property
    def total_bytes(self) -> int:
        """Everything that is taken, weights and buffers included."""
        return self.gpu_bytes + self.cpu_bytes


Subscriber = Callable[[ConfigurationChanged], None]
