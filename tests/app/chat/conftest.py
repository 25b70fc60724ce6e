"""A clock that tests turn, and a conversation with a scripted engine."""

from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from tests.support.fakes_app import make_controller
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient


class Clock:
    """Stands still until a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def loaded(
    tmp_path: Path, clock: Clock, script: Script | None = None
) -> tuple[Conversation, ScriptedClient]:
    """Open a conversation with a model."""
    controller, client = make_controller(tmp_path, script, clock=clock)
    controller.load(CONFIGURATION)
    controller.poll()
    return controller, client


def contents(controller: Conversation) -> list[tuple[Speaker, str]]:
    """Who said what."""
    return [(entry.speaker, entry.content) for entry in controller.entries()]
