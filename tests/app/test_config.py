import os
import stat
from pathlib import Path

import pytest

from app.config import Settings, SettingsError, load_settings, save_setting
from engine.cache.report import CacheSettings
from engine.configuration import SamplingSettings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kvchat" / "config.toml"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_without_a_file_everything_has_its_default(path: Path) -> None:
    loaded = load_settings(path)
    assert loaded.problem is None
    assert loaded.settings == Settings()
    assert loaded.settings.chat.sampling() == SamplingSettings(
        temperature=0.7, top_k=40, top_p=0.95, min_p=0.05
    )


def test_what_is_wrong_is_named_all_at_once_and_the_rest_is_used(path: Path) -> None:
    loaded = load_settings(
        written(
            path,
            """
            [ui]
            them = "nord"
            animation = "none"
            [chat]
            temperature = 11
            min_p = 1
            top_k = "many"
            [speculations]
            n_draft = 1
            """,
        )
    )
    assert loaded.problem is not None
    for part in (
        str(path),
        "[ui] them is an unknown setting, did you mean theme?",
        "[chat] temperature is 11: input should be less than or equal to 10",
        "[chat] min_p is 1: input should be less than 1",
        "[chat] top_k",
        "'many'",
        "[speculations] is an unknown setting, did you mean speculation?",
    ):
        assert part in loaded.problem
    assert loaded.settings.ui.animation == "none"
    assert loaded.settings.chat == Settings().chat


@pytest.mark.parametrize(
    "text", ["ui = 3", "[ui\n", "\x00", "[keys]\nchat-stop = 3", "[models]\nfolders = 'one'"]
)
def test_a_broken_file_is_named_and_never_an_error(path: Path, text: str) -> None:
    loaded = load_settings(written(path, text))
    assert loaded.settings == Settings()
    assert loaded.problem is not None
    assert str(path) in loaded.problem


def test_a_pipe_in_place_of_the_file_is_named_and_not_waited_for(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    assert "it is a pipe or a device, not a file" in (load_settings(path).problem or "")
    with pytest.raises(SettingsError, match="it is a pipe or a device, not a file"):
        save_setting("ui", "theme", "nord", path)


def test_bytes_that_are_no_text_are_named(path: Path) -> None:
    written(path, "").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in (load_settings(path).problem or "")


def test_saving_one_key_keeps_comments_and_what_else_is_there(path: Path) -> None:
    written(path, '# mine\n[ui]\ntheme = "old" # why\nodd = 1\n\n[keys]\na = "f8"\n')
    save_setting("ui", "theme", "nord", path)
    save_setting("chat", "temperature", 0.5, path)
    assert path.read_text() == (
        '# mine\n[ui]\ntheme = "nord" # why\nodd = 1\n\n[keys]\na = "f8"\n'
        "\n[chat]\ntemperature = 0.5\n"
    )


def test_saving_makes_a_private_file(path: Path) -> None:
    save_setting("ui", "theme", "nord", path)
    assert load_settings(path).settings.ui.theme == "nord"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["config.toml"]


def test_saving_follows_a_link(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("")
    path.parent.mkdir()
    path.symlink_to(target)
    save_setting("ui", "theme", "nord", path)
    assert path.is_symlink()
    assert 'theme = "nord"' in target.read_text()


def test_a_file_that_cannot_be_written_is_named(path: Path) -> None:
    path.parent.write_text("in the way")
    with pytest.raises(SettingsError, match=r"config\.toml cannot be"):
        save_setting("ui", "theme", "nord", path)


def test_a_cache_that_is_off_keeps_nothing_anywhere(path: Path) -> None:
    settings = load_settings(written(path, "[cache]\nenabled = false")).settings
    off = settings.cache.cache(Path("states"))
    assert (off.folder, off.warm_bytes, off.cold_bytes) == (None, 0, 0)
    assert Settings().cache.cache(Path("states")) == CacheSettings(folder=Path("states"))
