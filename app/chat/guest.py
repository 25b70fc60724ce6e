"""Who else may use the engine of a chat."""

from typing import Protocol

from engine.events import Event


class EngineGuest(Protocol):
    """Who uses the chat's engine for replies of its own while the chat waits."""

    @property
    def is_running(self) -> bool:
        """A reply of the guest is under way."""
        ...

    def take(self, event: Event) -> bool:
        """Take in an event; False for one that the chat should have."""
        ...
