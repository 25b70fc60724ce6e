"""System prompt, sampling, output format and verification of drafts of one chat."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any, ClassVar

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
    bounds_of,
)
from engine.grammar.source import SCHEMA_SUFFIX, GrammarError, read_grammar
from engine.planning.values import OptionError, parse_count


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """System prompt, sampling and verification of drafts."""

    system_prompt: str
    sampling: SamplingSettings
    speculation: SpeculationSettings
    """Speculation settings of the whole session; this dialog changes only the verification."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One number of the sampler."""

    name: str
    label: str
    hint: str
    is_whole: bool = False


_FIELDS = (
    _Field("temperature", "temperature", "0: always the most likely token"),
    _Field("top_k", "top k", "sample from the k likeliest; 0: all", True),
    _Field("top_p", "top p", "sampled probability mass; 1: all"),
    _Field("min_p", "min p", "fraction of top probability; 0: off"),
    _Field("repetition_penalty", "repetition penalty", "above 1: less repetition; 1: off"),
    _Field("thinking_budget", "thinking budget", "max tokens of thinking; 0: no limit", True),
)


_CHOICES: dict[str, tuple[str, dict[str | bool, str]]] = {
    "thinking": (
        "thinking",
        {"auto": "auto: follows the chat template", "off": "off: answers without thinking"},
    ),
    "verification": (
        "verification",
        {
            "coupled": "coupled: same text as without drafts",
            "rejection": "rejection: accepts more drafts; the text differs",
        },
    ),
    "bonus_token": (
        "bonus token",
        {True: "on: extra token after an accepted draft", False: "off: no extra token"},
    ),
}
"""Settings of sampling or speculation with their labels and choices."""


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
            with Grid(id="choices"):
                for name, (label, choices) in _CHOICES.items():
                    sampling, speculation = self._settings.sampling, self._settings.speculation
                    now = getattr(sampling if name == "thinking" else speculation, name)
                    yield Label(label, classes="label")
                    yield Select(
                        [(text, value) for value, text in choices.items()],
                        value=now, allow_blank=False, compact=True, id=name,
                    )  # fmt: skip
            yield Static("", id="problem", markup=False)
            yield Static("ctrl+s or enter saves · esc cancels", classes="hint", markup=False)

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
        chosen: dict[str, Any] = {
            name: self.query_one(f"#{name}", Select).value for name in _CHOICES
        }
        values["thinking"] = chosen.pop("thinking")
        self.dismiss(
            ChatSettings(
                self.query_one("#system-prompt", TextArea).text,
                replace(self._settings.sampling, **values).with_absolute_paths(),
                replace(self._settings.speculation, **chosen),
            )
        )


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
