"""Thinking in replies: the markers of reasoning models, and template variables to turn it off.

A stored reply includes its opening marker, whether the model or the template wrote it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import TemplateError
from engine.requests import Message

if TYPE_CHECKING:  # showing a reply does not need Jinja
    from engine.model.chat_template import ChatTemplate

SWITCHES = ("enable_thinking", "thinking")
"""Variables that turn thinking off: Qwen 3 and GLM 4.5; Granite and DeepSeek 3.1."""
PROBE = (Message("user", "hello"),)


@dataclass(frozen=True, slots=True)
class Markers:
    """The texts before and after the thinking of a reply."""

    start: str
    end: str


MARKERS = (
    Markers("<think>", "</think>"),
    Markers(
        "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
    Markers("<|channel>thought\n", "<channel|>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("<thought>", "</thought>"),
    Markers("<|begin_of_thought|>", "<|end_of_thought|>"),
    Markers("<thinking>", "</thinking>"),
    Markers("<reasoning>", "</reasoning>"),
)
"""Of Qwen, DeepSeek, GLM, Nemotron and others; gpt-oss (harmony); Gemma 4; Magistral; Command A;
Seed-OSS; EXAONE Deep; Open Thinker; models prompted to use them."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A reply split into thinking and answer."""

    text: str
    """The thinking without its markers."""
    answer: str
    """The text for the user; empty during the thinking."""
    is_over: bool
    """Whether the end marker was written."""

    @classmethod
    def of(cls, reply: str) -> "Thought | None":
        """Split a reply; None if it has no thinking. The start marker may be missing."""
        begun = reply.lstrip()
        for markers in MARKERS:
            start = markers.start.rstrip()
            if begun.startswith(start):
                text, end, answer = begun.removeprefix(start).partition(markers.end)
                return cls(text.strip(), answer.lstrip(), bool(end))
        for markers in MARKERS:
            text, end, answer = begun.partition(markers.end)
            is_marker = not end.startswith("</") or _is_separate(text, answer)
            if end and markers.start not in text and is_marker:
                return cls(text.strip(), answer.lstrip(), is_over=True)
        return None


def _is_separate(before: str, after: str) -> bool:
    """Whether a marker between two texts begins or ends a line, unlike a quoted one."""
    return after.startswith("\n") or not before.rpartition("\n")[2].strip()


def answer_of(reply: str) -> str:
    """A reply without its thinking; the whole reply if it has no answer."""
    thought = Thought.of(reply)
    return thought.answer if thought is not None and thought.answer.strip() else reply


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's thinking format."""

    markers: Markers
    switch: str | None
    """The template variable that turns thinking off; None if there is none."""
    has_field: bool
    """Whether the template reads earlier thinking from a separate field."""

    @classmethod
    def found(cls, template: "ChatTemplate", single: Callable[[str], bool]) -> "Reasoning | None":
        """Detect the format from template and vocabulary; None if neither has markers.

        Args:
            template: Of the model.
            single: Whether a text is a single control or user-defined token.
        """
        from engine.model.chat_template import THOUGHT_FIELDS

        switch = next((name for name in SWITCHES if _switches(template, name)), None)
        for markers in MARKERS:
            named = markers.start in template.text or markers.end in template.text
            if named or (single(markers.start) and single(markers.end)):
                has_field = any(f".{name}" in template.text for name in THOUGHT_FIELDS)
                return cls(markers, switch, has_field)
        return None

    def opened_by(self, prompt: str) -> str:
        """The end of a prompt that opens the thinking; otherwise empty."""
        at = prompt.rfind(self.markers.start)
        tail = prompt[at:] if at >= 0 else ""
        return tail if tail.strip() == self.markers.start.strip() else ""

    def close_thinking(self, prompt: str) -> str:
        """The prompt with closed thinking, so that the model answers at once."""
        start, end = self.markers.start, self.markers.end
        opened = self.opened_by(prompt)
        at = prompt.rfind(start)
        tail = prompt[at:] if at >= 0 else ""
        if not opened and tail.rstrip().endswith(end):
            return prompt  # closed by the template
        return f"{prompt}{'' if opened else start}{self.closing}"

    @property
    def closing(self) -> str:
        """The text that ends the thinking early."""
        end = self.markers.end
        return f"\n{end}\n\n" if end.startswith("</") else end


def _switches(template: "ChatTemplate", name: str) -> bool:
    """Whether a boolean variable changes the template's output."""
    if name not in template.text:
        return False
    try:
        return template.render(PROBE, **{name: True}) != template.render(PROBE, **{name: False})
    except TemplateError:
        return False
