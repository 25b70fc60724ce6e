"""A conversation with a scripted engine, whose clock a test sets."""

from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from tests.support.fakes_app import make_conversation
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient


class Clock:
    """Stands still until a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Start:
    """Opens conversations of one database; the test sets their clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()

    def __call__(self, script: Script | None = None) -> tuple[Conversation, ScriptedClient]:
        """Open a conversation with a model."""
        conversation, client = self.without_model(script)
        conversation.load(CONFIGURATION)
        conversation.poll()
        return conversation, client

    def without_model(
        self, script: Script | None = None, **settings: Any
    ) -> tuple[Conversation, ScriptedClient]:
        return make_conversation(self.path, script, clock=self.clock, **settings)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def contents(conversation: Conversation) -> list[tuple[Speaker, str]]:
    """The speaker and text of each entry."""
    return [(entry.speaker, entry.content) for entry in conversation.entries()]
