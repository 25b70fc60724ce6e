from pathlib import Path

import pytest
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme
from textual.widgets import Input, Static

from app.paths import themes_dir
from app.themes import load_themes, read_theme, theme_variable_defaults
from app.widgets.bars import TitleBar
from tests.support.fakes_app import WIDE, make_app, ready

OWN = {theme.name: theme for theme in load_themes(Path("/nowhere")).themes}


def contrast(a: Color, b: Color) -> float:
    """Give the contrast ratio of WCAG 2.1, 1 to 21."""

    def luminance(color: Color) -> float:
        parts = [part / 255 for part in (color.r, color.g, color.b)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_there_are_dark_and_light_themes_one_of_high_contrast_and_one_of_sixteen_colours() -> None:
    assert {theme.dark for theme in OWN.values()} == {True, False}
    own = {"dark", "light", "contrast", "16"}
    assert {f"kvchat-{name}" for name in own} == set(OWN)


@pytest.mark.parametrize("ground", ["background", "surface", "panel"])
def test_every_colour_of_high_contrast_is_far_from_its_ground(ground: str) -> None:
    colors = OWN["kvchat-contrast"].to_color_system().generate()
    ground_color = Color.parse(colors[ground])
    names = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")
    assert all(contrast(Color.parse(colors[name]), ground_color) >= 7.5 for name in names)


def test_sixteen_colours_are_the_terminals_own() -> None:
    theme = OWN["kvchat-16"]
    colors = [theme.primary, theme.foreground, theme.background, *theme.variables.values()]
    assert theme.ansi
    assert all(color is not None and color.startswith("ansi_") for color in colors)


@pytest.mark.parametrize("name", [name for name in OWN if not OWN[name].ansi])
@pytest.mark.parametrize("ground", ["background", "surface"])
def test_text_of_every_colour_can_be_read(name: str, ground: str) -> None:
    colors = OWN[name].to_color_system().generate()
    ground_color = Color.parse(colors[ground])
    assert contrast(Color.parse(colors["foreground"]), ground_color) >= 10
    for role in ("primary", "secondary", "accent", "success", "warning", "error"):
        assert contrast(Color.parse(colors[f"text-{role}"]), ground_color) >= 7, role
        assert contrast(Color.parse(colors[role]), ground_color) >= 4, role
    for variable, value in OWN[name].variables.items():
        least = 1.5 if variable.endswith("-free") else 4.5
        assert contrast(Color.parse(value), ground_color) >= least, variable


class Painted(App[None]):
    CSS = "\n".join(
        f"#{name} {{ color: ${name}; background: ${name}; }}" for name in theme_variable_defaults()
    )

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.current_theme)

    def compose(self):
        for name in theme_variable_defaults():
            yield Static(name, id=name)


@pytest.mark.parametrize("flag", ["true", "false"])
async def test_a_minimal_theme_can_be_shown(flag: str, tmp_path: Path) -> None:
    least = f'name = "least"\nansi = {flag}\n[colors]\nprimary = "ansi_red"\n'
    theme = read_theme(user_theme(tmp_path, "least.toml", least))
    app = Painted()
    async with app.run_test() as pilot:
        app.register_theme(theme)
        app.theme = "least"
        await pilot.pause()


async def test_every_theme_of_textual_has_kvchats_variables() -> None:
    app = Painted()
    async with app.run_test() as pilot:
        for theme in OWN.values():
            app.register_theme(theme)
        for name in (*BUILTIN_THEMES, *OWN):
            app.theme = name
            await pilot.pause()
        app.theme = "kvchat-dark"
        await pilot.pause()
        assert app.query_one("#mem-kv").styles.color == Color.parse("#f2b36b")


def user_theme(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_users_theme_is_loaded_and_can_replace_an_own_one(tmp_path: Path) -> None:
    user_theme(
        tmp_path,
        "mine.toml",
        'name = "kvchat-dark"\n[colors]\nprimary = "#123456"\n[variables]\nkv-used = "red 50%"\n',
    )
    user_theme(tmp_path, "other.toml", 'name = "other"\ndark = false\n[colors]\nprimary="blue"\n')
    loaded = load_themes(tmp_path)
    assert loaded.problems == ()
    themes: dict[str, Theme] = {theme.name: theme for theme in loaded.themes}
    assert themes["kvchat-dark"].primary == "#123456"
    assert themes["kvchat-dark"].variables == {"kv-used": "red 50%"}
    assert themes["other"].dark is False


def test_bad_themes_are_left_out_and_named_with_all_that_is_wrong(tmp_path: Path) -> None:
    user_theme(
        tmp_path,
        "bad.toml",
        'name = "bad"\ndrak = true\n[colors]\nprimary = "#12"\nsucess = "#ffffff"\n',
    )
    user_theme(tmp_path, "broken.toml", "name = ")
    user_theme(
        tmp_path,
        "unused.toml",
        'name = "u"\n[colors]\nprimary = "red"\n[variables]\nspec-acepted = "red"\n',
    )
    loaded = load_themes(tmp_path)
    assert {theme.name for theme in loaded.themes} == set(OWN)
    bad, broken, unused = loaded.problems
    for part in (
        "bad.toml",
        "did you mean dark?",
        "'#12' is not a colour",
        "did you mean success?",
    ):
        assert part in bad
    assert "broken.toml" in broken
    assert "variables.spec-acepted is not a theme key, did you mean spec-accepted?" in unused


@pytest.mark.parametrize(("name", "filter_kind"), [("kvchat-16", NoColor), ("nord", Monochrome)])
async def test_without_colour_every_theme_can_still_be_read(
    name: str, filter_kind: type[LineFilter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        app.theme = name
        await pilot.pause()
        assert [each for each in app.get_line_filters() if isinstance(each, filter_kind)]
        title = app.screen.query_one(TitleBar)
        for _, style, _ in title.render_lines(title.outer_size.region)[0]:
            assert style is not None
            assert style.color is None or style.color != style.bgcolor or style.color.is_default


async def test_where_nothing_is_to_move_cursors_are_still(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[ui]\nanimation = "none"\n')
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        assert app.animation_level == "none"
        await pilot.press("ctrl+f")
        await pilot.pause()
        assert app.screen.query_one(Input).cursor_blink is False


async def test_bad_themes_are_one_notice_and_the_application_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    themes_dir().mkdir(parents=True)
    user_theme(themes_dir(), "one.toml", 'name = "one"\n[colors]\nprimary = "#12"\n')
    user_theme(themes_dir(), "two.toml", "name = ")
    (tmp_path / "config.toml").write_text('[ui]\ntheme = "kvchat-contrast"\n')
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.pause()
        [notice] = app._notifications
        assert "one.toml" in notice.message
        assert "two.toml" in notice.message
        assert app.theme == "kvchat-contrast"


@pytest.mark.parametrize("name", [name for name in OWN if not OWN[name].ansi])
async def test_the_placeholder_of_the_composer_can_be_read(name: str, tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        app.theme = name
        await pilot.pause()
        style = app.chat.composer.get_component_rich_style("text-area--placeholder")
        assert style.color is not None
        assert style.bgcolor is not None
        colors = [Color.parse(each.get_truecolor().hex) for each in (style.color, style.bgcolor)]
        assert contrast(colors[0], colors[1]) >= 4.5
