"""What a chat gives a comparison to answer."""

from collections.abc import Callable
from pathlib import Path

from app.chat.comparing import obstacle, prompt_of, request_of
from app.chat.conversation import Conversation
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.comparison import Comparison
from engine.requests import GenerationRequest
from tests.support.fakes_app import make_controller
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient


def opened(tmp_path: Path, script: Script | None = None) -> tuple[Conversation, ScriptedClient]:
    controller, client = make_controller(tmp_path, script)
    controller.load(CONFIGURATION)
    controller.poll()
    return controller, client


def until(controller: Conversation, is_so: Callable[[], bool]) -> None:
    for _ in range(200):
        controller.poll()
        if is_so():
            return
    raise AssertionError("it did not happen")


def answered(controller: Conversation, text: str) -> None:
    controller.send(text)
    until(controller, lambda: not controller.is_replying)


def lend(
    controller: Conversation, client: ScriptedClient, request: GenerationRequest
) -> Comparison:
    arms = (PLAIN, parse_arm("lookup"))
    comparison = Comparison(client, request, arms, speculation=controller.speculation)
    controller.lease = comparison
    return comparison


def test_the_cells_of_a_comparison_are_not_shown_as_the_chat_s(tmp_path: Path) -> None:
    controller, client = opened(tmp_path, Script(("One two", "Three four five", "Six")))
    assert controller.snapshot().is_of_chat, "a new chat in an empty context"
    answered(controller, "first")
    assert controller.snapshot().is_of_chat
    request = request_of(controller, "second")
    assert request is not None
    comparison = lend(controller, client, request)
    comparison.add_blocks()
    until(controller, lambda: not comparison.is_running)
    assert not controller.snapshot().is_of_chat
    answered(controller, "third")
    assert controller.snapshot().is_of_chat
    controller.new_chat()
    controller.poll()
    assert not controller.snapshot().is_of_chat, "the new chat has none of those cells"


def test_a_new_question_follows_the_chat_and_is_not_saved(tmp_path: Path) -> None:
    controller, _ = opened(tmp_path)
    controller.history.system_prompt = "Be short."
    request = request_of(controller, "first")
    assert request is not None
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be short."), ("user", "first")
    ]  # fmt: skip
    answered(controller, "first")
    request = request_of(controller, "second")
    assert request is not None
    roles = [message.role for message in request.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert [entry.content for entry in controller.entries()] == ["first", "Hello there."]
    assert prompt_of(controller, " ", tmp_path) == "first"


def test_a_question_after_one_without_a_reply_joins_it(tmp_path: Path) -> None:
    controller, _ = opened(tmp_path, Script(tps=1.0))
    controller.send("first")
    controller.stop()
    until(controller, lambda: not controller.is_replying)
    request = request_of(controller, "second")
    assert request is not None
    assert [message.role for message in request.messages] == ["user"]
    assert request.messages[0].content == "first\n\nsecond"


def test_the_chat_cannot_ask_while_a_comparison_has_its_engine(tmp_path: Path) -> None:
    controller, client = opened(tmp_path, Script(tps=1.0))
    request = request_of(controller, "go")
    assert request is not None
    comparison = lend(controller, client, request)
    assert controller.can_ask
    comparison.add_blocks()
    assert not controller.can_ask
    assert "comparison" in str(obstacle(controller))
    comparison.stop()
    until(controller, lambda: not comparison.is_running)
    assert controller.can_ask
    assert controller.snapshot().session.n_rounds == 0
