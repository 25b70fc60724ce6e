import os
import stat
from pathlib import Path

import pytest
from pydantic import BaseModel

from app.config import Settings, SettingsError, load_settings, save_setting
from engine.cache.report import CacheSettings
from engine.configuration import ControllerName, PredictorName, SamplingSettings
from engine.memory.units import MIB


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


def test_every_key_of_the_file_arrives(path: Path) -> None:
    loaded = load_settings(
        written(
            path,
            """
            [ui]
            theme = "nord"
            graph_symbols = "ascii"
            animation = "none"
            [chat]
            temperature = 0
            top_k = 1
            top_p = 0.5
            min_p = 0.1
            repetition_penalty = 1.1
            system_prompt = "be brief"
            max_tokens = 100
            [speculation]
            predictor = "off"
            controller = "fixed"
            n_draft = 5
            verification = "rejection"
            bonus_token = false
            [models]
            folders = ["~/gguf", "/srv/models"]
            default = "starter"
            [engine]
            n_threads = 2
            use_extra_buffers = false
            [cache]
            warm = "512MiB"
            cold = "0"
            min_tokens = 16
            checkpoint_tokens = 0
            reserve = "1 GiB"
            slots = 4
            [keys]
            chat-stop = "f8"
            """,
        )
    )
    assert loaded.problem is None
    settings = loaded.settings
    assert (settings.ui.theme, settings.ui.graph_symbols) == ("nord", "ascii")
    assert settings.chat.sampling() == SamplingSettings(
        temperature=0.0, top_k=1, top_p=0.5, min_p=0.1, repetition_penalty=1.1
    )
    speculation = settings.speculation.speculation()
    assert speculation.predictor is PredictorName.OFF
    assert speculation.controller is ControllerName.FIXED
    assert speculation.n_draft == 5
    assert speculation.verification == "rejection"
    assert not speculation.bonus_token
    assert settings.models.folders == (Path("~/gguf"), Path("/srv/models"))
    assert settings.models.default == "starter"
    assert (settings.engine.n_threads, settings.engine.use_extra_buffers) == (2, False)
    assert settings.cache.cache(Path("states")) == CacheSettings(
        folder=None,
        warm_bytes=512 * MIB,
        cold_bytes=0,
        min_tokens=16,
        checkpoint_tokens=0,
        reserve_bytes=1024 * MIB,
    )
    assert settings.cache.slots == 4
    assert settings.keys == {"chat-stop": "f8"}


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
        "[ui] them is no setting, did you mean theme?",
        "[chat] temperature is 11: input should be less than or equal to 10",
        "[chat] min_p is 1: input should be less than 1",
        "[chat] top_k",
        "'many'",
        "[speculations] is no setting, did you mean speculation?",
    ):
        assert part in loaded.problem
    assert loaded.settings.ui.animation == "none"
    assert loaded.settings.chat == Settings().chat


def test_the_rule_band_of_earlier_versions_is_named_and_auto_is_used(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('[speculation]\ncontroller = "band"\n')
    loaded = load_settings(path)
    assert loaded.settings.speculation.controller is ControllerName.AUTO
    assert "controller is 'band'" in str(loaded.problem)
    assert "'auto'" in str(loaded.problem)


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
    assert "a pipe or a device is no file" in (load_settings(path).problem or "")
    with pytest.raises(SettingsError, match="a pipe or a device is no file"):
        save_setting("ui", "theme", "nord", path)


def test_bytes_that_are_no_text_are_named(path: Path) -> None:
    written(path, "").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in (load_settings(path).problem or "")


def test_a_key_is_taken_out_and_the_rest_stays_as_it_was(path: Path) -> None:
    text = "# mine\n[chat]\nmin_p = 0.1  # kept\n"
    written(path, text.replace("min_p", "temperature = 0.5\nmin_p"))
    save_setting("chat", "temperature", None, path)
    assert path.read_text(encoding="utf-8") == text


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
    kept = tmp_path / "dotfiles.toml"
    kept.write_text("")
    path.parent.mkdir()
    path.symlink_to(kept)
    save_setting("ui", "theme", "nord", path)
    assert path.is_symlink()
    assert 'theme = "nord"' in kept.read_text()


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("ui", "them", "x", "did you mean theme"),
        ("chat", "temperature", -1.0, "greater than or equal to 0"),
        ("uii", "theme", "x", "did you mean ui"),
    ],
)
def test_a_wrong_key_or_value_is_not_saved(
    path: Path, section: str, key: str, value: str | float, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        save_setting(section, key, value, path)
    assert not path.exists()


def test_a_broken_file_is_not_overwritten(path: Path) -> None:
    written(path, "[ui\n")
    with pytest.raises(SettingsError, match="repair it first"):
        save_setting("ui", "theme", "nord", path)
    assert path.read_text() == "[ui\n"


def test_a_file_that_cannot_be_written_is_named(path: Path) -> None:
    path.parent.write_text("in the way")
    with pytest.raises(SettingsError, match=r"config\.toml cannot be"):
        save_setting("ui", "theme", "nord", path)


def test_every_setting_is_documented_below_its_line() -> None:
    import ast
    import inspect

    import app.config

    tree = ast.parse(inspect.getsource(app.config))
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("gs")]
    for node in classes:
        fields = [n for n, item in enumerate(node.body) if isinstance(item, ast.AnnAssign)]
        for n in fields:
            field = node.body[n]
            assert isinstance(field, ast.AnnAssign)
            if isinstance(field.annotation, ast.Name) and field.annotation.id[0].isupper():
                continue
            below = node.body[n + 1] if n + 1 < len(node.body) else None
            assert isinstance(below, ast.Expr), f"{node.name}: {ast.unparse(field)}"


def test_settings_cannot_be_changed_in_place() -> None:
    settings: BaseModel = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.ui = None  # type: ignore[attr-defined]


def test_a_cache_that_is_off_keeps_nothing_anywhere(path: Path) -> None:
    settings = load_settings(written(path, "[cache]\nenabled = false")).settings
    off = settings.cache.cache(Path("states"))
    assert (off.folder, off.warm_bytes, off.cold_bytes) == (None, 0, 0)
    assert Settings().cache.cache(Path("states")) == CacheSettings(folder=Path("states"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('warm = "much"', "'much' is no size"),
        ('cold = "-1GiB"', "is no size"),
        ("cold = -1", "greater than or equal to 0"),
        ("cold = true", "valid integer"),
        ('warm = ["1GiB"]', "valid integer"),
        ("slots = 17", "less than or equal to 16"),
        ("wram = 1", "did you mean warm"),
    ],
)
def test_a_wrong_line_about_the_cache_is_named_and_left_out(
    path: Path, line: str, reason: str
) -> None:
    loaded = load_settings(written(path, f"[cache]\n{line}"))
    assert loaded.settings == Settings()
    assert loaded.problem is not None
    assert reason in loaded.problem


def test_a_budget_is_saved_as_it_is_spelled(path: Path) -> None:
    save_setting("cache", "cold", "2GiB", path)
    assert 'cold = "2GiB"' in path.read_text()
    assert load_settings(path).settings.cache.cold == 2048 * MIB
    with pytest.raises(SettingsError, match="no size"):
        save_setting("cache", "cold", "plenty", path)
