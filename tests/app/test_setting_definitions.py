"""Settings as they are listed: none is missing, and each value reads as it is text_of_ids."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.config import Settings, SettingsError, UserSettings, load_settings
from app.setting_definitions import SECTIONS, SettingDefinition, definitions
from engine.memory.units import GIB

ALL = {f"{each.section}.{each.key}": each for each in definitions()}


def test_every_setting_is_listed_with_a_meaning() -> None:
    assert set(SECTIONS) == set(Settings.model_fields)
    for section in SECTIONS:
        table = getattr(Settings(), section)
        names = table if isinstance(table, dict) else type(table).__annotations__
        assert {f"{section}.{name}" for name in names} <= set(ALL), section
    assert all(each.meaning for each in ALL.values())


@pytest.mark.parametrize("name", ALL)
def test_a_default_reads_as_it_is_written(name: str) -> None:
    each = ALL[name]
    assert each.effect
    value = each.read(each.format(each.default))
    table = {} if value is None else {each.key: value}
    assert each.value(Settings.model_validate({each.section: table})) == each.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("chat.temperature", "0,5", 0.5),
        ("chat.top_k", "1", 1),
        ("chat.seed", "", None),
        ("chat.stop", '["a, b", "\\n\\n"]', ["a, b", "\n\n"]),
        ("models.folders", "~/a, /b", ["~/a", "/b"]),
        ("models.default", "7", "7"),
        ("cache.warm", "2GiB", "2GiB"),
        ("cache.enabled", "off", False),
        ("engine.n_threads", "auto", "auto"),
        ("engine.n_threads", "4", 4),
        ("speculation.predictor", "lookup", "lookup"),
    ],
)
def test_what_is_typed_becomes_a_value_of_the_file(
    name: str, text: str, value: object, tmp_path: Path
) -> None:
    each = ALL[name]
    assert each.read(text) == value
    settings = UserSettings(tmp_path / "config.toml")
    settings.change(each.section, each.key, each.read(text))
    read = load_settings(tmp_path / "config.toml")
    assert read.problem is None
    assert read == settings.loaded
    assert each.read(each.format(each.value(read.settings))) == each.read(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("chat.temperature", "warm", "0.0 to 10.0"),
        ("chat.temperature", "nan", "0.0 to 10.0"),
        ("chat.max_tokens", "0", "1 or more"),
        ("chat.stop", "[1]", "text in quotes"),
        ("chat.stop", "[", "not a valid list"),
        ("chat.stop", '[""]', "at least 1 character"),
        ("cache.warm", "plenty", "not a size"),
        ("ui.animation", "wild", "full, basic, none"),
        ("engine.n_ctx", "3", "auto, or 16 or more"),
    ],
)
def test_an_invalid_value_is_refused_with_the_valid_ones(
    name: str, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        ALL[name].read(text)


def test_sizes_are_written_with_their_unit() -> None:
    assert ALL["cache.cold"].format(8 * GIB) == "8GiB"


@example("one\r\ntwo\rthree\n")
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_prompt_of_any_text_comes_back(text: str) -> None:
    import tempfile

    each = SettingDefinition("prompts", "mine", "", None, is_long=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = UserSettings(Path(folder) / "config.toml")
        value = each.read(text)
        if value is not None:
            settings.change("prompts", "mine", value)
            assert settings.loaded.problem is None
            assert settings.settings.prompts == {"mine": text}


def test_a_line_of_a_prompt_is_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[prompts]\na = """\n[ui]\ntheme = "x"\n"""\n[ui]\nthemes = "x"\n')
    loaded = load_settings(path)
    assert loaded.faults == {("ui", "themes"): " is an unknown setting, did you mean theme?"}
    assert loaded.given == {("prompts", "a"), ("ui", "themes")}
