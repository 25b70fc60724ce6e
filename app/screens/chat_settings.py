"""System prompt, sampling, output format and verification of drafts of one chat."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Select, Static, TextArea

from app.sanitize import visible
from engine.configuration import (
    MAX_COUNT,
    SamplingSettings,
    SpeculationSettings,
    Thinking,
    Verification,
    bounds_of,
)
from engine.grammar.source import SCHEMA_SUFFIX, GrammarError, read_grammar
from engine.planning.values import OptionError, parse_count

Choice = TypeVar("Choice", bound=Verification | Thinking | bool)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """System prompt, sampling and verification of drafts."""

    system_prompt: str
    sampling: SamplingSettings
    speculation: SpeculationSettings
    """Of the whole session; its verification is changed here."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One number of the sampler."""

    name: str
    label: str
    hint: str
    is_whole: bool = False


_FIELDS = (
    _Field("temperature", "temperature", "0: always the most likely token"),
    _Field("top_k", "top k", "sample from the top k; 0: all", True),
    _Field("top_p", "top p", "probability mass; 1: all"),
    _Field("min_p", "min p", "fraction of top probability; 0: off"),
    _Field("repetition_penalty", "repetition penalty", "above 1: less repetition; 1: off"),
    _Field("thinking_budget", "thinking budget", "max tokens of thinking; 0: no limit", True),
)


_VERIFICATIONS: dict[Verification, str] = {
    "coupled": "coupled: same text as without drafts",
    "rejection": "rejection: accepts more drafts; the text differs",
}
_THINKS: dict[Thinking, str] = {
    "auto": "auto: follows the chat template",
    "off": "off: answers without thinking",
}
_BONUS = {True: "on: extra token after full acceptance", False: "off: no extra token"}


class ChatSettingsScreen(ModalScreen[ChatSettings | None]):
    """Asks for the settings of a chat; the result is None if nothing changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="chat-settings-cancel",
                tooltip="Close without saving"),
        Binding("ctrl+s", "save", "Save", id="chat-settings-save", priority=True,
                tooltip="Use these settings in this chat"),
    ]  # fmt: skip

    def __init__(self, settings: ChatSettings, prompts: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._prompts = prompts or {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("settings of this chat", classes="title", markup=False)
            yield Label("system prompt", classes="label")
            if self._prompts:
                names = [(Content(visible(name)), name) for name in self._prompts]
                yield Select(names, prompt="choose a saved prompt", compact=True, id="library")
            yield TextArea(
                self._settings.system_prompt, id="system-prompt", tab_behavior="focus",
                highlight_cursor_line=False, placeholder="empty: no system prompt",
            )  # fmt: skip
            with Grid(id="sampling"):
                for field in _FIELDS:
                    value = getattr(self._settings.sampling, field.name)
                    yield Label(field.label, classes="label")
                    yield Input(repr(value).removesuffix(".0"), id=field.name, compact=True)
                    yield Label(field.hint, classes="hint")
            with Grid(id="answer"):
                yield Label("output format", classes="label")
                yield Input(
                    self._settings.sampling.json_schema or self._settings.sampling.grammar,
                    id="answer-rule", compact=True,
                    placeholder="file with a JSON schema (.json) or grammar; empty: any text",
                )  # fmt: skip
            yield from self._verification()
            yield Static("", id="problem", markup=False)
            yield Static("ctrl+s or enter saves · esc cancels", classes="hint", markup=False)

    def _verification(self) -> ComposeResult:
        speculation = self._settings.speculation
        with Grid(id="choices"):
            yield Label("thinking", classes="label")
            yield _choice("thinking", _THINKS, self._settings.sampling.thinking)
            yield Label("verification", classes="label")
            yield _choice("verification", _VERIFICATIONS, speculation.verification)
            yield Label("bonus token", classes="label")
            yield _choice("bonus_token", _BONUS, speculation.bonus_token)

    def on_mount(self) -> None:
        self.query_one("#system-prompt").focus()

    def on_select_changed(self, message: Select.Changed) -> None:
        prompt = self._prompts.get(str(message.value)) if message.select.id == "library" else None
        if prompt is not None:
            self.query_one("#system-prompt", TextArea).text = prompt

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        values: dict[str, Any] = {}
        problems: list[str] = []
        for field in _FIELDS:
            try:
                values[field.name] = _read(field, self.query_one(f"#{field.name}", Input).value)
            except ValueError as error:
                problems.append(str(error))
        rule = self.query_one("#answer-rule", Input).value.strip()
        is_schema = rule.endswith(SCHEMA_SUFFIX)
        values["json_schema"], values["grammar"] = (rule, "") if is_schema else ("", rule)
        try:
            if rule:
                read_grammar(Path(rule), is_schema=is_schema)
        except GrammarError as error:
            problems.append(str(error))
        if problems:
            self.query_one("#problem", Static).update("\n".join(problems))
            return
        chosen = self.query_one("#thinking", Select).value
        values["thinking"] = next(name for name in _THINKS if name == chosen)
        changed = replace(self._settings.sampling, **values).with_absolute_paths()
        prompt = self.query_one("#system-prompt", TextArea).text
        self.dismiss(ChatSettings(prompt, changed, self._speculation()))

    def _speculation(self) -> SpeculationSettings:
        verification = self.query_one("#verification", Select).value
        return replace(
            self._settings.speculation,
            verification=next(name for name in _VERIFICATIONS if name == verification),
            bonus_token=self.query_one("#bonus_token", Select).value is True,
        )


def _choice(name: str, options: dict[Choice, str], value: Choice) -> Select[Choice]:
    pairs = [(text, option) for option, text in options.items()]
    return Select(pairs, value=value, allow_blank=False, compact=True, id=name)


def _read(field: _Field, text: str) -> float | int:
    """The number in a field; `ValueError` names what is possible."""
    bounds = bounds_of(SamplingSettings)[field.name]
    try:
        value = (
            parse_count(text, low=0, high=MAX_COUNT)
            if field.is_whole
            else float(text.replace(",", "."))
        )
    except (ValueError, OptionError):
        value = nan
    if not bounds.allow(value):
        kind = "whole number" if field.is_whole else "number"
        raise ValueError(f"{field.label} must be a {kind}, {bounds}, not {text!r}")
    return value
