"""Reasoning models: their markers, their budget, and what of a turn the next prompt reuses."""

from dataclasses import replace

import pytest

from engine.configuration import SamplingSettings
from engine.events import Event, Finished, Thinking, TokensCommitted
from engine.generation.reasoning import MARKERS, Reasoning, Thought, answer_of
from engine.generation.session import Session
from engine.generation.thinking import ThinkingWatch
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message
from engine.testing import FakeBackend
from tests.support.sessions import as_message, finished, make_session, ready, run

STRIPS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1].lstrip() if m.role == 'assistant' else m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
"""Opens the thinking itself, and leaves it out of earlier turns."""
SWITCHED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
FIELD = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content and loop.last %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}<assistant>"
)
ASKED = GenerationRequest((Message("user", "why"),), seed=1, owner="chat:1")


def session(template: str = STRIPS, **kinds: bool) -> Session:
    backend = FakeBackend(n_ctx=2000, seed=1, **kinds)  # type: ignore[arg-type]
    return make_session(target=backend, template=template)


def made(one: Session, request: GenerationRequest) -> tuple[Finished, list[Event]]:
    events = run(one, request)
    return finished(events), events


def asked(budget: int = 0, thinking: str = "auto", max_tokens: int = 60) -> GenerationRequest:
    sampling = SamplingSettings(thinking_budget=budget, thinking=thinking)  # type: ignore[arg-type]
    return GenerationRequest(ASKED.messages, sampling=sampling, seed=1, max_tokens=max_tokens)


def test_a_reply_is_split_at_its_markers() -> None:
    assert Thought.of("<think>\nso\n</think>\n\nyes") == Thought("so", "yes", True)
    assert Thought.of("  [THINK]so") == Thought("so", "", False)
    assert Thought.of("yes, <think> is a tag </think>") is None
    harmony = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>"
    assert Thought.of(f"{harmony}yes") == Thought("so", "yes", True)
    assert answer_of("<think>so</think>yes") == "yes"
    assert answer_of("<think>so") == "<think>so", "a reply that only thinks is all there is"


@pytest.mark.parametrize(
    "reply",
    [
        "I add two and two.\n</think>\n\nIt is 4.",
        "I add two and two.</think>\n\nIt is 4.",
        "I add two and two.\n</think>It is 4.",
        "<thinking>I add two and two.</thinking>It is 4.",
        "<reasoning>\nI add two and two.\n</reasoning>\n\nIt is 4.",
        "I add two and two.\n</reasoning>\nIt is 4.",
        "<|channel>thought I add two and two.<channel|>It is 4.",
        "<|channel>thought\nI add two and two.\n<channel|>It is 4.",
        "I add two and two.<channel|>It is 4.",
        "I add two and two.[/THINK]It is 4.",
    ],
)
def test_the_answer_is_found_in_what_servers_send(reply: str) -> None:
    assert Thought.of(reply) == Thought("I add two and two.", "It is 4.", is_over=True)


@pytest.mark.parametrize(
    "reply",
    [
        "It is 4.",
        "Write `</think>` after it.",
        "A tag such as </think> ends it.",
        "```\n<think>\nso\n</think>\n```\n",
        "",
    ],
)
def test_an_answer_that_names_a_marker_is_no_thought(reply: str) -> None:
    assert Thought.of(reply) is None


def test_markers_are_found_in_the_template_or_as_single_tokens() -> None:
    def none(_: str) -> bool:
        return False

    found = Reasoning.found(ChatTemplate(SWITCHED), none)
    assert found is not None
    assert (found.switch, found.has_field) == ("enable_thinking", False)
    assert Reasoning.found(ChatTemplate("{{ messages[0].content }}"), none) is None
    only = Reasoning.found(ChatTemplate("{{ messages[0].content }}"), lambda text: "THINK]" in text)
    assert only is not None
    assert only.markers.start == "[THINK]"


def test_the_text_begins_with_the_marker_that_the_template_wrote() -> None:
    reply, events = made(session(), asked(max_tokens=8))
    assert reply.text.startswith("<think>\n")
    shown = "".join(event.text for event in events if isinstance(event, TokensCommitted))
    assert shown == reply.text
    assert len(reply.token_ids) <= 8, "the marker is none of the reply's own tokens"


@pytest.mark.parametrize("budget", [1, 5, 17])
def test_a_budget_closes_the_thinking_and_the_answer_goes_on(budget: int) -> None:
    reply, events = made(session(), asked(budget))
    thought = Thought.of(reply.text)
    assert thought is not None
    assert thought.is_over
    reported = [event for event in events if isinstance(event, Thinking)]
    assert reported[-1].note is not None
    assert f"{budget} tokens" in reported[-1].note
    assert reported[-2].n_tokens == budget if budget > 1 else True
    assert len(reply.token_ids) > budget
    assert reply.stats.n_thinking == reported[-1].n_tokens


@pytest.mark.parametrize(("budget", "most"), [(8, 8), (8, 9), (5, 15), (5, 16), (5, 17)])
def test_closing_the_thinking_does_not_exceed_max_tokens(budget: int, most: int) -> None:
    reply, _ = made(session(), asked(budget, max_tokens=most))
    assert len(reply.token_ids) <= most


def test_the_tokens_after_closed_thinking_are_those_of_a_new_prefill() -> None:
    reply, _ = made(session(), asked(5, max_tokens=40))
    closed = reply.text[: reply.text.index("</think>") + len("</think>\n\n")]
    rest = reply.text.removeprefix(closed)
    again = GenerationRequest(
        ASKED.messages, seed=1, continues_text=closed, max_tokens=len(rest.encode()) or 1
    )
    assert made(session(), again)[0].text[: len(reply.text)] == reply.text


def test_thinking_is_off_by_the_templates_switch_or_by_an_empty_block() -> None:
    one = session(SWITCHED)
    with_it, without = made(one, asked(max_tokens=4)), made(one, asked(0, "off", 4))
    assert without[0].stats.n_prompt > with_it[0].stats.n_prompt, "the template wrote the block"
    closed = made(session(), asked(0, "off", 4))[0]
    assert not closed.text.startswith("<think>")
    assert closed.stats.n_thinking == 0


def test_the_ids_of_an_answer_are_reused_if_its_thinking_is_stripped() -> None:
    for template in (STRIPS, FIELD):
        one = session(template)
        first, _ = made(one, asked(5, max_tokens=30))
        text = first.text if template == STRIPS else f"<think>so</think>{first.text}"
        turns = (
            *ASKED.messages,
            replace(as_message(first), content=text),
            Message("user", "and"),
        )
        _, events = made(one, GenerationRequest(turns, seed=1, max_tokens=1))
        assert ready(events).note is None


def test_an_end_marker_is_found_across_rounds() -> None:
    watch = ThinkingWatch(Reasoning(MARKERS[0], None, has_field=False), 0, lambda: 0.0)
    begun = watch.update("<think>so</th", 3)
    ended = watch.update("<think>so</think>It", 2)
    assert begun is not None
    assert ended is not None
    assert (begun.is_over, ended.is_over, ended.n_tokens) == (False, True, 5)
    assert watch.update("<think>so</think>It is", 1) is None
