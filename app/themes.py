"""Themes from TOML files: kvchat's own and the user's, with the colours that only kvchat has."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from app.config import SettingsError
from app.paths import builtin_themes_dir, themes_dir
from engine.files import SETTINGS_BYTES, read_text, reason_of
from engine.parsing import parse_toml
from engine.validation import did_you_mean, explain, explain_faults

VARIABLE_SOURCES = {
    "spec-accepted": "text-success",
    "spec-refuted": "text-error",
    "spec-bonus": "text-warning",
    "spec-plain": "foreground-muted",
    "source-lookup": "text-primary",
    "source-suffix": "text-success",
    "source-draft": "text-accent",
    "source-other": "text-secondary",
    "kv-used": "text-primary",
    "kv-reused": "text-success",
    "kv-hot": "text-accent",
    "kv-warm": "text-secondary",
    "kv-cold": "text-primary",
    "mem-weights": "text-primary",
    "mem-kv": "text-accent",
    "mem-state": "text-secondary",
    "mem-compute": "text-success",
    "mem-overhead": "text-warning",
}
"""Colours of a theme that replace variables of kvchat which the theme lacks."""

FREE_VARIABLES = ("kv-free", "mem-free")
"""The empty parts of bars: the foreground, faint."""
VARIABLES = (*VARIABLE_SOURCES, *FREE_VARIABLES)

ANSI_VARIABLES = {"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"}
"""Variables that Textual's own styles need from a theme with `ansi`."""


def _color(text: str) -> str:
    try:
        Color.parse(re.sub(r"\s+\d{1,3}%$", "", text))
    except ColorParseError as error:
        raise ValueError(
            f"{text!r} is not a colour: write a colour such as #7ab7ff or #7ab7ff 50%"
        ) from error
    return text


ColorText = Annotated[str, AfterValidator(_color)]


class ThemeColors(BaseModel):
    """The colours that Textual builds its own from; only `primary` is needed."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    primary: ColorText
    secondary: ColorText | None = None
    accent: ColorText | None = None
    success: ColorText | None = None
    warning: ColorText | None = None
    error: ColorText | None = None
    foreground: ColorText | None = None
    background: ColorText | None = None
    surface: ColorText | None = None
    panel: ColorText | None = None
    boost: ColorText | None = None


class ThemeFile(BaseModel):
    """One theme of a TOML file."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(min_length=1)
    dark: bool = True
    ansi: bool = False
    """Whether colours such as `ansi_blue` stay the terminal's own, as its palette has them."""
    colors: ThemeColors
    variables: dict[str, ColorText] = Field(default_factory=dict)

    def theme(self) -> Theme:
        """The theme for Textual."""
        return Theme(
            name=self.name,
            dark=self.dark,
            ansi=self.ansi,
            variables=self.variables,
            **self.colors.model_dump(),
        )


@dataclass(frozen=True, slots=True)
class LoadedThemes:
    """Themes to register, and one line for each file that could not be used."""

    themes: tuple[Theme, ...]
    problems: tuple[str, ...] = ()


def load_themes(user_folder: Path | None = None) -> LoadedThemes:
    """Read kvchat's themes and the user's; a bad file is left out and named.

    Args:
        user_folder: Where the user's themes are; None is the usual folder. A theme there takes the
            place of a built-in one of the same name.
    """
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in (builtin_themes_dir(), user_folder or themes_dir()):
        for path in sorted(folder.glob("*.toml")):
            try:
                theme = read_theme(path)
            except ValueError as error:
                problems.append(f"theme {path}: {error}")
            else:
                themes[theme.name] = theme
    return LoadedThemes(tuple(themes.values()), tuple(problems))


def require_theme(name: str) -> None:
    """Refuse a theme that is none of kvchat's, the user's and Textual's.

    Raises:
        SettingsError: It is none; the message names them all, and files that could not be read.
    """
    loaded = load_themes()
    names = [*(theme.name for theme in loaded.themes), *BUILTIN_THEMES]
    if name not in names:
        faults = "".join(f"; {problem}" for problem in loaded.problems)
        known = ", ".join(dict.fromkeys(names))
        raise SettingsError(
            f"[ui] theme is {name!r}, which does not exist: choose one of {known}{faults}"
        )


def read_theme(path: Path) -> Theme:
    """Read one theme.

    Raises:
        ValueError: If the file cannot be read; it names every key and value that is wrong.
    """
    try:
        content = parse_toml(read_text(path, limit=SETTINGS_BYTES))
        theme = ThemeFile.model_validate(content).theme()
    except OSError as error:
        raise ValueError(f"the file cannot be read: {reason_of(error)}") from error
    except ValidationError as error:
        faults = explain(error, ThemeFile, unknown="not a theme key")
        raise ValueError(explain_faults(faults)) from error
    # A variable that no style uses is probably a typing mistake.
    known = {*theme.to_color_system().generate(), *VARIABLES, *ANSI_VARIABLES}
    unknown = [
        (("variables", name), f" is not a theme key{did_you_mean(name, known)}")
        for name in theme.variables
        if name not in known
    ]
    if unknown:
        raise ValueError(explain_faults(unknown))
    return theme


def theme_variable_defaults(theme: Theme | None = None) -> dict[str, str]:
    """Colours of kvchat's own variables for a theme that lacks them, from the colours that it has.

    Args:
        theme: The current theme; None is the dark one of kvchat.
    """
    if theme is None:
        theme = read_theme(builtin_themes_dir() / "kvchat-dark.toml")
    own = {name: theme.variables[name] for name in VARIABLES if name in theme.variables}
    if len(own) == len(VARIABLES):
        return ANSI_VARIABLES | own
    generated = theme.to_color_system().generate()
    defaults = {name: generated[source] for name, source in VARIABLE_SOURCES.items()}
    free = "ansi_bright_black" if theme.ansi else f"{generated['foreground']} 30%"
    return ANSI_VARIABLES | defaults | dict.fromkeys(FREE_VARIABLES, free) | own
