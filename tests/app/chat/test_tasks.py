"""the engine works on a summary or a comparison while a chat is answered in another slot."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from engine.events import CacheChanged, FinishReason, ThreadsChanged
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.comparison import Comparison
from engine.requests import GenerationRequest, Message
from tests.app.chat.conftest import Clock, Start, contents
from tests.support.fakes_client import CONFIGURATION, FULL, Script, ScriptedClient

SLOW, LEFT, RIGHT = "slow words " * 20, "left " * 90, "right " * 90
TWO_SLOTS = replace(CONFIGURATION, n_ctx=512, n_slots=2)


def full_beside_slow(start: Start) -> tuple[Conversation, ScriptedClient, int]:
    """A chat without free cells is shown while another one is answered slowly."""
    conversation, client = start.without_model(Script(replies=("reply " * 40,)))
    conversation.load(TWO_SLOTS)
    conversation.poll()
    for i in range(6):
        conversation.send(f"question {i} " + "please " * 15)
        conversation.poll()
    full = conversation.history.chat
    assert full is not None
    client.script = Script(replies=(SLOW,), tps=20.0)
    conversation.new_chat()
    conversation.send("long one")
    conversation.poll()
    slow = conversation.history.chat
    assert slow is not None
    conversation.open_chat(full.id)
    client.script = FULL
    conversation.send("one more")
    assert conversation.poll().context_full
    return conversation, client, slow.id


def play(conversation: Conversation, clock: Clock, n_steps: int = 200) -> None:
    for _ in range(n_steps):
        clock.now += 0.5
        conversation.poll()


def compared(conversation: Conversation, client: ScriptedClient) -> Comparison:
    request = GenerationRequest((Message("user", "x"),), seed=1)
    arms = (PLAIN, parse_arm("lookup"))
    comparison = Comparison(client, request, arms, speculation=conversation.speculation)
    conversation.task = comparison
    comparison.add_blocks()
    return comparison


@pytest.mark.parametrize("n_sentences", [1, 40])
def test_a_reply_during_a_summary_is_complete(n_sentences: int, start: Start) -> None:
    conversation, client, slow = full_beside_slow(start)
    client.script = Script(replies=("They asked six times. " * n_sentences,), tps=20.0)
    ContextFull(conversation).summarise()
    play(conversation, start.clock)
    assert conversation.reply_in(slow) is None
    assert conversation.history.chat is not None
    assert "They asked six times." in (conversation.history.chat.summary or "")
    conversation.open_chat(slow)
    assert contents(conversation)[-1][1] == SLOW
    reply = conversation.history.message(conversation.entries()[-1].key)
    assert reply.finish_reason == FinishReason.END


def test_a_reply_during_a_comparison_is_complete(
    start: Start,
) -> None:
    conversation, client = start.without_model(
        Script(replies=(SLOW, LEFT, RIGHT, RIGHT, LEFT), tps=20.0)
    )
    conversation.load(replace(TWO_SLOTS, n_slots=3))
    conversation.poll()
    conversation.send("long one")
    conversation.poll()
    comparison = compared(conversation, client)
    play(conversation, start.clock)
    assert not conversation.is_replying
    assert contents(conversation)[-1][1] == SLOW
    [block] = comparison.blocks
    assert [answer.text for answer in block] == [LEFT, RIGHT, RIGHT, LEFT]


def summarised(conversation: Conversation, client: ScriptedClient) -> None:
    client.script = Script(replies=("word " * 40,), tps=5.0)
    ContextFull(conversation).summarise()


@pytest.mark.parametrize("lend", [summarised, compared])
def test_tokens_are_counted_during_a_summary_or_comparison(
    lend: Callable[[Conversation, ScriptedClient], object], start: Start
) -> None:
    conversation, client, _ = full_beside_slow(start)
    client.script = Script(replies=("word " * 40,), tps=5.0)
    lend(conversation, client)
    assert conversation.counts.of("typed meanwhile") is None
    conversation.poll()
    assert conversation.has_task
    assert conversation.counts.of("typed meanwhile") == 2


def test_panels_show_the_engine_during_a_summary(start: Start) -> None:
    conversation, client, _ = full_beside_slow(start)
    summarised(conversation, client)
    client.emit(ThreadsChanged(3, 3, ""))
    client.emit(CacheChanged(77, 512, 1))
    conversation.poll()
    snapshot = conversation.snapshot()
    assert snapshot.threads is not None
    assert snapshot.threads.n_decode == 3
    assert conversation.has_task


def test_esc_stops_the_shown_reply_only(start: Start) -> None:
    conversation, client, slow = full_beside_slow(start)
    summarised(conversation, client)
    conversation.open_chat(slow)
    assert conversation.stop()
    conversation.poll()
    assert conversation.reply_in(slow) is None
    assert conversation.has_task


def test_a_second_summary_waits_for_the_first(start: Start) -> None:
    conversation, client, _ = full_beside_slow(start)
    summarised(conversation, client)
    first, n_asked = conversation.task, len(client.requests)
    summarised(conversation, client)
    assert conversation.task is first
    assert len(client.requests) == n_asked
    assert "is running" in conversation.poll().notices[-1].message


def test_an_engine_that_ends_cuts_summary_and_replies(start: Start) -> None:
    conversation, client, slow = full_beside_slow(start)
    client.script = Script(replies=("word " * 40,), tps=5.0, dies_after=3)
    ContextFull(conversation).summarise()
    play(conversation, start.clock, 20)
    assert not conversation.has_task
    assert conversation.reply_in(slow) is None
    assert conversation.loaded is None
