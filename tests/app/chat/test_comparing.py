"""What a chat gives a comparison to answer."""

from collections.abc import Callable
from pathlib import Path

from app.chat.comparing import obstacle, prompt_of, request_of
from app.chat.conversation import Conversation
from app.chat.snapshot import NO_MODEL
from engine.configuration import Configuration
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.comparison import Comparison
from engine.requests import GenerationRequest
from tests.support.fakes_app import make_conversation
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient


def opened(tmp_path: Path, script: Script | None = None) -> tuple[Conversation, ScriptedClient]:
    conversation, client = make_conversation(tmp_path, script)
    conversation.load(CONFIGURATION)
    conversation.poll()
    return conversation, client


def until(conversation: Conversation, is_so: Callable[[], bool]) -> None:
    for _ in range(200):
        conversation.poll()
        if is_so():
            return
    raise AssertionError("it did not happen")


def answered(conversation: Conversation, text: str) -> None:
    conversation.send(text)
    until(conversation, lambda: not conversation.is_replying)


def lend(
    conversation: Conversation, client: ScriptedClient, request: GenerationRequest
) -> Comparison:
    arms = (PLAIN, parse_arm("lookup"))
    comparison = Comparison(client, request, arms, speculation=conversation.speculation)
    conversation.task = comparison
    return comparison


def test_cells_of_a_comparison_are_not_the_chat_s(tmp_path: Path) -> None:
    conversation, client = opened(tmp_path, Script(("One two", "Three four five", "Six")))
    assert conversation.snapshot().is_of_chat, "a new chat in an empty context"
    answered(conversation, "first")
    assert conversation.snapshot().is_of_chat
    request = request_of(conversation, "second")
    assert request is not None
    comparison = lend(conversation, client, request)
    comparison.add_blocks()
    until(conversation, lambda: not comparison.is_running)
    assert not conversation.snapshot().is_of_chat
    answered(conversation, "third")
    assert conversation.snapshot().is_of_chat
    conversation.new_chat()
    conversation.poll()
    assert not conversation.snapshot().is_of_chat, "the new chat has none of those cells"


def test_what_cannot_be_compared_gives_the_reason(tmp_path: Path) -> None:
    conversation, _ = make_conversation(tmp_path, Script(tps=1.0))
    assert obstacle(conversation) == NO_MODEL
    conversation.load(Configuration.at_server("http://127.0.0.1:9"))
    assert "settings of a server" in str(obstacle(conversation))
    conversation.load(CONFIGURATION)
    assert "a loaded model and no running reply" in str(obstacle(conversation))
    conversation.poll()
    assert obstacle(conversation) is None
    assert prompt_of(conversation, "typed", tmp_path) == "typed"
    assert prompt_of(conversation, " ", tmp_path) == ""
    assert request_of(conversation, " ") is None
    conversation.send("asked")
    assert "a loaded model and no running reply" in str(obstacle(conversation))


def test_a_new_question_follows_the_chat_and_is_not_saved(tmp_path: Path) -> None:
    conversation, _ = opened(tmp_path)
    conversation.history.system_prompt = "Be short."
    request = request_of(conversation, "first")
    assert request is not None
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be short."), ("user", "first")
    ]  # fmt: skip
    answered(conversation, "first")
    request = request_of(conversation, "second")
    assert request is not None
    roles = [message.role for message in request.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert [entry.content for entry in conversation.entries()] == ["first", "Hello there."]
    assert prompt_of(conversation, " ", tmp_path) == "first"


def test_a_question_after_one_without_a_reply_joins_it(tmp_path: Path) -> None:
    conversation, _ = opened(tmp_path, Script(tps=1.0))
    conversation.send("first")
    conversation.stop()
    until(conversation, lambda: not conversation.is_replying)
    request = request_of(conversation, "second")
    assert request is not None
    assert [message.role for message in request.messages] == ["user"]
    assert request.messages[0].content == "first\n\nsecond"


def test_nothing_is_sent_during_a_comparison(tmp_path: Path) -> None:
    conversation, client = opened(tmp_path, Script(tps=1.0))
    request = request_of(conversation, "go")
    assert request is not None
    comparison = lend(conversation, client, request)
    assert conversation.can_ask
    comparison.add_blocks()
    assert not conversation.can_ask
    assert "comparison" in str(obstacle(conversation))
    comparison.stop()
    until(conversation, lambda: not comparison.is_running)
    assert conversation.can_ask
    assert conversation.snapshot().session.n_rounds == 0
