"""The engine is lent to a summary or a comparison while a chat is answered in another slot."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from engine.events import CacheChanged, FinishReason, ThreadsChanged
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.comparison import Comparison
from engine.requests import GenerationRequest, Message
from tests.app.chat.conftest import Clock, contents
from tests.support.fakes_app import make_controller
from tests.support.fakes_client import CONFIGURATION, FULL, Script, ScriptedClient

SLOW, LEFT, RIGHT = "slow words " * 20, "left " * 90, "right " * 90
TWO_SLOTS = replace(CONFIGURATION, n_ctx=512, n_slots=2)


def full_beside_slow(tmp_path: Path, clock: Clock) -> tuple[Conversation, ScriptedClient, int]:
    """A chat without free cells is shown while another one is answered slowly."""
    controller, client = make_controller(tmp_path, Script(replies=("reply " * 40,)), clock=clock)
    controller.load(TWO_SLOTS)
    controller.poll()
    for i in range(6):
        controller.send(f"question {i} " + "please " * 15)
        controller.poll()
    full = controller.history.chat
    assert full is not None
    client.script = Script(replies=(SLOW,), tps=20.0)
    controller.new_chat()
    controller.send("long one")
    controller.poll()
    slow = controller.history.chat
    assert slow is not None
    controller.open_chat(full.id)
    client.script = FULL
    controller.send("one more")
    assert controller.poll().context_full
    return controller, client, slow.id


def play(controller: Conversation, clock: Clock, n_steps: int = 200) -> None:
    for _ in range(n_steps):
        clock.now += 0.5
        controller.poll()


def compared(controller: Conversation, client: ScriptedClient) -> Comparison:
    request = GenerationRequest((Message("user", "x"),), seed=1)
    arms = (PLAIN, parse_arm("lookup"))
    comparison = Comparison(client, request, arms, speculation=controller.speculation)
    controller.lease = comparison
    comparison.add_blocks()
    return comparison


@pytest.mark.parametrize("n_sentences", [1, 40])
def test_a_reply_beside_a_summary_is_saved_whole(
    n_sentences: int, tmp_path: Path, clock: Clock
) -> None:
    controller, client, slow = full_beside_slow(tmp_path, clock)
    client.script = Script(replies=("They asked six times. " * n_sentences,), tps=20.0)
    ContextFull(controller).summarise()
    play(controller, clock)
    assert controller.reply_in(slow) is None
    assert controller.history.chat is not None
    assert "They asked six times." in (controller.history.chat.summary or "")
    controller.open_chat(slow)
    assert contents(controller)[-1][1] == SLOW
    reply = controller.history.message(controller.entries()[-1].key)
    assert reply.finish_reason == FinishReason.END


def test_a_reply_beside_a_comparison_is_saved_whole_and_is_none_of_its_answers(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = make_controller(
        tmp_path, Script(replies=(SLOW, LEFT, RIGHT, RIGHT, LEFT), tps=20.0), clock=clock
    )
    controller.load(replace(TWO_SLOTS, n_slots=3))
    controller.poll()
    controller.send("long one")
    controller.poll()
    comparison = compared(controller, client)
    play(controller, clock)
    assert not controller.is_replying
    assert contents(controller)[-1][1] == SLOW
    [block] = comparison.blocks
    assert [answer.text for answer in block] == [LEFT, RIGHT, RIGHT, LEFT]


def summarised(controller: Conversation, client: ScriptedClient) -> None:
    client.script = Script(replies=("word " * 40,), tps=5.0)
    ContextFull(controller).summarise()


@pytest.mark.parametrize("lend", [summarised, compared])
def test_what_is_typed_is_counted_while_the_engine_is_lent(
    lend: Callable[[Conversation, ScriptedClient], object], tmp_path: Path, clock: Clock
) -> None:
    controller, client, _ = full_beside_slow(tmp_path, clock)
    client.script = Script(replies=("word " * 40,), tps=5.0)
    lend(controller, client)
    assert controller.counts.of("typed meanwhile") is None
    controller.poll()
    assert controller.is_leased
    assert controller.counts.of("typed meanwhile") == 2


def test_what_a_lent_engine_measures_of_itself_reaches_the_panels(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client, _ = full_beside_slow(tmp_path, clock)
    summarised(controller, client)
    client.emit(ThreadsChanged(3, 3, ""))
    client.emit(CacheChanged(77, 512, 1))
    controller.poll()
    snapshot = controller.snapshot()
    assert snapshot.threads is not None
    assert snapshot.threads.n_decode == 3
    assert controller.is_leased


def test_stopping_ends_the_shown_reply_and_not_the_summary_of_another_chat(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client, slow = full_beside_slow(tmp_path, clock)
    summarised(controller, client)
    controller.open_chat(slow)
    assert controller.stop()
    controller.poll()
    assert controller.reply_in(slow) is None
    assert controller.is_leased


def test_a_second_summary_waits_for_the_first(tmp_path: Path, clock: Clock) -> None:
    controller, client, _ = full_beside_slow(tmp_path, clock)
    summarised(controller, client)
    first, n_asked = controller.lease, len(client.requests)
    summarised(controller, client)
    assert controller.lease is first
    assert len(client.requests) == n_asked
    assert "is busy" in controller.poll().notices[-1].message


def test_the_end_of_the_engine_ends_a_summary_and_every_reply(tmp_path: Path, clock: Clock) -> None:
    controller, client, slow = full_beside_slow(tmp_path, clock)
    client.script = Script(replies=("word " * 40,), tps=5.0, dies_after=3)
    ContextFull(controller).summarise()
    play(controller, clock, 20)
    assert not controller.is_leased
    assert controller.reply_in(slow) is None
    assert controller.loaded is None
