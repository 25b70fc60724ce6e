"""Who else may use the engine of a chat."""

from typing import Protocol

from engine.events import CacheChanged, CostsMeasured, Event, Loaded, TiersChanged

ENGINE_EVENTS = (Loaded, CacheChanged, CostsMeasured, TiersChanged)
"""Events of the engine itself: the chat takes them, whoever asks."""


class EngineGuest(Protocol):
    """Who uses the chat's engine for replies of its own while the chat waits."""

    @property
    def is_running(self) -> bool:
        """A reply of the guest is under way."""
        ...

    def engine_ends(self, why: str) -> None:
        """The engine is taken away: no event of the guest's replies comes any more."""
        ...

    def take(self, event: Event) -> bool:
        """Take in an event; False for one that the chat should have."""
        ...
