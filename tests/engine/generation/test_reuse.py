"""Why a prompt was read again, on a fake model whose tokens are letters."""

from dataclasses import replace

import pytest

from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.configuration import SamplingSettings
from engine.events import PromptReady, ReadCause
from engine.generation.session import Session
from engine.requests import GenerationRequest, Message
from engine.testing import FakeBackend, FakeVocabulary
from tests.support.sessions import as_message, finished, make_session, run
from tests.support.sessions import ready as ready_of

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRIPS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1].lstrip() if m.role == 'assistant' else m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
DATED = "<{{ messages | length }} messages>" + PLAIN
LONG = "why is the sky blue and the sea so green today"


def made_backend(n_sequences: int = 1, **kinds: bool) -> FakeBackend:
    return FakeBackend(
        FakeVocabulary(95, 32), n_ctx=2000, n_sequences=n_sequences, end_bias=-40.0, **kinds
    )


def session(template: str = PLAIN, backend: FakeBackend | None = None) -> Session:
    return make_session(target=backend or made_backend(), template=template)


def ask(
    one: Session, *messages: Message, owner: str = "chat:1", **changes: object
) -> tuple[PromptReady, Message]:
    """The event of a prompt, and the reply to it as a message."""
    base = GenerationRequest(messages, seed=1, max_tokens=8, owner=owner)
    wanted = replace(base, **changes)  # type: ignore[arg-type]  # fields by name
    events = run(one, wanted)
    return ready_of(events), as_message(finished(events))


def test_the_first_prompt_of_a_chat_has_none_before_it() -> None:
    one = session()
    ready, _ = ask(one, Message("user", LONG))
    assert (ready.cause, ready.n_common, ready.n_reused) == (ReadCause.FIRST, None, 0)
    assert ready.n_read == ready.n_prompt
    assert ask(one, Message("user", "other"), owner="chat:2")[0].cause is ReadCause.FIRST


def test_a_prompt_that_goes_on_from_the_one_before_differs_in_nothing() -> None:
    one, question = session(), Message("user", LONG)
    first, answer = ask(one, question)
    ready, _ = ask(one, question, answer, Message("user", "and"))
    assert (ready.cause, ready.miss_cause) == (None, None)
    assert ready.n_common == ready.n_reused == first.n_prompt + len(answer.token_ids or ()) - 1
    again, _ = ask(one, question)
    assert (again.cause, again.miss_cause) == (None, None), (
        "generated again, its prompt is all there"
    )
    assert again.n_reused == again.n_prompt - 1


@pytest.mark.parametrize("edit", [0, 1, 2, 3])
def test_an_edit_is_reported_with_both_texts(edit: int) -> None:
    one = session()
    system, question, more = Message("system", "be brief"), Message("user", LONG), "and then"
    _, answer = ask(one, system, question)
    turns = [system, question, answer, Message("user", more)]
    ask(one, *turns)
    turns[edit] = Message(turns[edit].role, f"Now {turns[edit].content}")
    ready, _ = ask(one, *turns)
    assert ready.cause is ReadCause.EDITED
    assert ready.text_before.endswith(f"<{turns[edit].role}>"[-8:])
    assert ready.new_text.startswith("Now ")
    assert turns[edit].content.removeprefix("Now ").startswith(ready.old_text[:4])
    assert ready.n_reused == ready.n_common
    assert ready.miss_cause is None


def test_a_reply_that_continues_another_text_was_changed() -> None:
    one, question = session(), Message("user", LONG)
    _, answer = ask(one, question)
    ids = answer.token_ids or ()
    edited, changed = ask(one, question, continues=ids, continues_text=f"{answer.content[:4]}XY")
    assert edited.cause is ReadCause.EDITED
    assert edited.new_text == "XY"[: len(edited.new_text)]
    assert ask(one, question, continues=ids)[0].cause is ReadCause.EDITED
    ask(one, question, changed, Message("user", "and"))
    assert ask(one, question, continues_text="ZZ")[0].cause is ReadCause.EDITED
    assert ask(one, question, continues_text="ZZ")[0].cause is None, "the same reply goes on"


def test_a_template_that_writes_the_same_messages_otherwise_is_named() -> None:
    one, question = session(DATED), Message("user", LONG)
    _, answer = ask(one, question)
    ready, _ = ask(one, question, answer, Message("user", "and"))
    assert (ready.cause, ready.old_text[0], ready.new_text[0]) == (ReadCause.TEMPLATE, "1", "3")


def test_thinking_that_the_template_leaves_out_is_named() -> None:
    one, question = session(STRIPS), Message("user", LONG)
    _, answer = ask(one, question)
    thought = replace(answer, content=f"{answer.content}</think>yes", token_ids=None)
    one_more = session(STRIPS)
    line = ask(one_more, question, continues_text=thought.content, max_tokens=1)[1]
    ready, _ = ask(one_more, question, line, Message("user", "and"))
    assert ready.cause is ReadCause.REASONING
    assert ready.old_text.startswith("<think>")
    assert not ready.new_text.startswith("<think>")


def test_a_switch_of_thinking_is_another_setting() -> None:
    one, question = session(STRIPS), Message("user", LONG)
    _, answer = ask(one, question)
    off = SamplingSettings(thinking="off")
    ready, _ = ask(one, question, sampling=off)
    assert ready.cause is ReadCause.SETTINGS
    ask(one, question)
    assert ask(one, question, sampling=off, continues_text="ZZ")[0].cause is ReadCause.SETTINGS
    turns = (question, replace(answer, content="yes", token_ids=None), Message("user", "and"))
    assert ask(one, *turns, sampling=off)[0].cause is ReadCause.EDITED


def test_what_another_chat_pushed_out_is_lost() -> None:
    one, question = session(), Message("user", LONG)
    _, answer = ask(one, question)
    ask(one, Message("user", LONG[::-1]), owner="chat:2")
    ready, _ = ask(one, question, answer, Message("user", "and"))
    assert (ready.cause, ready.miss_cause) == (None, ReadCause.EVICTED)
    assert ready.n_common is not None
    assert ready.n_reused < ready.n_common


def test_what_was_computed_with_other_adapters_is_missing_for_that_reason() -> None:
    one, question = session(), Message("user", LONG)
    _, answer = ask(one, question)
    ready, _ = ask(one, question, answer, Message("user", "and"), adapters=())
    assert (ready.cause, ready.miss_cause) == (None, ReadCause.SETTINGS)


def test_a_state_that_goes_on_otherwise_and_cannot_be_cut_is_named() -> None:
    one = session(backend=made_backend(can_crop=False, can_slice=False))
    question = Message("user", LONG)
    ask(one, question)
    ready, _ = ask(one, Message("user", f"{LONG}!"))
    assert (ready.cause, ready.miss_cause) == (ReadCause.EDITED, ReadCause.UNCUT)


def test_tokens_of_another_slot_and_of_memory_are_counted_apart() -> None:
    backend = made_backend(n_sequences=2)
    one = session(backend=backend)
    settings = CacheSettings(min_tokens=4, checkpoint_tokens=0, reserve_bytes=0)
    tiers = PrefixCache(
        Namespace("made", "up", ()), can_slice=backend.can_slice,
        store=None, settings=settings, in_background=False,
    )  # fmt: skip
    one.attach_cache(tiers, settings)
    question = Message("user", LONG)
    first, _ = ask(one, question)
    ready, _ = ask(one, question, owner="chat:2")
    assert ready.n_reused == ready.n_prompt - 1
    assert ready.n_copied + ready.n_warm == ready.n_reused
    assert first.computed_restore_s is None


def test_what_is_nobodys_is_not_remembered() -> None:
    one = session()
    ask(one, Message("user", LONG), owner="")
    assert ask(one, Message("user", LONG), owner="")[0].cause is ReadCause.FIRST
