"""A reply that the user changes, a chat that is copied, and thinking that is folded."""

from dataclasses import replace
from pathlib import Path

from app.chat.entries import CONTINUES, thinking_text
from app.render.lines import plain
from app.render.transcript import EntryLines
from engine.events import Thinking
from tests.app.chat.conftest import Clock, contents, loaded
from tests.support.fakes_client import CONFIGURATION, Script, spelled

THINKS = "<think>\nfirst this\nthen that\n</think>\n\nThe answer."


def text_of(lines: EntryLines, width: int = 80) -> str:
    return "\n".join(plain(line) for line in lines.lines(width))


def test_a_reply_goes_on_behind_what_the_user_made_of_it(tmp_path: Path, clock: Clock) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("Red is nice.", " and blue.")))
    controller.send("which")
    controller.poll()
    [question, reply] = controller.entries()
    before = controller.history.message(reply.key)
    controller.edit(reply.key, "Red is loud")
    request = client.requests[-1]
    assert request.continues_text == "Red is loud"
    assert spelled(request.continues) == "Red is nice.", "ids of a like text, to be reused"
    controller.poll()
    [same, changed] = controller.entries()
    assert (same.key, changed.n_variants) == (question.key, 2)
    assert changed.content == "Red is loud and blue."
    assert controller.history.message(before.id) == before
    assert controller.switch_variant(changed.key, -1)
    assert controller.entries()[-1].content == "Red is nice."


def test_a_changed_reply_is_saved_before_the_engine_says_anything(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("one.", "two"), tps=1.0))
    controller.send("which")
    clock.now += 60
    controller.poll()
    controller.edit(controller.entries()[-1].key, "mine")
    controller.begin_close()
    stored = controller.history.message(controller.entries()[-1].key)
    assert stored.content == "mine"


def test_a_fork_has_the_messages_up_to_there_and_the_chat_stays(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("first", "second")))
    for question in ("one", "two"):
        controller.send(question)
        controller.poll()
    old = controller.history.chat
    assert old is not None
    whole = contents(controller)
    forked = controller.fork(controller.entries()[1].key)
    assert forked != old.id
    assert contents(controller) == whole[:2]
    controller.send("other")
    controller.poll()
    controller.open_chat(old.id)
    assert contents(controller) == whole


def test_a_fork_of_a_streaming_reply_has_its_text_so_far_and_can_go_on(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("word " * 50, "end."), tps=10))
    controller.send("go")
    clock.now += 1
    controller.poll()
    live = controller.entries()[-1]
    assert live.is_live
    old = controller.history.chat
    assert old is not None
    controller.fork(live.key)
    copied = controller.entries()[-1]
    assert copied.content == live.content
    assert copied.ending.startswith("stopped · ")
    assert copied.ending.endswith(CONTINUES)
    clock.now += 60
    controller.poll()
    assert controller.continue_reply()
    assert client.requests[-1].continues_text == live.content
    assert spelled(client.requests[-1].continues) == live.content
    controller.open_chat(old.id)
    assert controller.entries()[-1].content == "word " * 50, "it went on in its own chat"


def test_a_reply_that_streams_shows_where_it_thinks_and_folds_that_then(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("x",), tps=1.0))
    controller.send("why")
    lines = EntryLines(controller.entries()[-1])
    shown = []
    for start in range(0, len(THINKS), 7):
        lines.append(THINKS[start : start + 7])
        shown.append(text_of(lines))
    lines.set_progress(thinking_text(Thinking(1200, 4.1)))
    assert any("first this" in text for text in shown)
    assert not any("<think>" in text for text in shown[1:])
    assert shown[-1].rstrip().endswith("The answer.")
    assert "then that" not in shown[-1]
    assert "1,200 tokens" in text_of(lines)


def test_a_reply_of_another_model_says_which(tmp_path: Path) -> None:
    controller, _ = loaded(tmp_path, Clock())
    controller.send("hello")
    controller.poll()
    assert "by " not in controller.entries()[-1].ending
    other = replace(CONFIGURATION, model_path=Path("Other-Model.Q8_0.gguf"))
    controller.poll()
    controller.load(other)
    assert controller.poll().is_rebuilt
    assert controller.entries()[-1].ending.startswith("by Tiny-Instruct")
