from pathlib import Path

import pytest

from app import config, paths
from app.cli import main

pytestmark = pytest.mark.usefixtures("home")


def test_asking_where_things_are_makes_nothing(tmp_path: Path) -> None:
    for place in (
        paths.settings_path,
        paths.presets_dir,
        paths.themes_dir,
        paths.database_path,
        paths.models_dir,
        paths.header_cache_path,
        paths.snapshots_dir,
        paths.worker_log_path,
        paths.doctor_log_path,
        lambda: paths.model_folders(()),
    ):
        place()
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_folders_come_before_the_usual_ones(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", f"/first:~/second:{home}/models")
    folders = paths.model_folders([Path("~/configured")])
    assert folders[:5] == (
        Path("/first"),
        home / "second",
        home / "models",
        home / "configured",
        paths.models_dir(),
    )
    assert folders.count(home / "models") == 1


def test_the_settings_file_names_folders(home: Path) -> None:
    path = paths.settings_path()
    path.parent.mkdir(parents=True)
    path.write_text('[models]\nfolders = ["~/mine"]\n')
    assert home / "mine" in config.model_folders()


def test_caches_of_other_programs_are_scanned_where_they_were_moved_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home / ".lmstudio" / "models" in paths.model_folders(())
    monkeypatch.setenv("HF_HOME", "/hf")
    monkeypatch.setenv("LLAMA_CACHE", "/llama")
    assert {Path("/hf/hub"), Path("/llama")} <= set(paths.model_folders(()))
    monkeypatch.setenv("HF_HUB_CACHE", "/hub")
    assert Path("/hub") in paths.model_folders(())
    assert home / ".ollama" / "models" in paths.model_folders(())
    monkeypatch.setenv("OLLAMA_MODELS", "/ollama")
    assert Path("/ollama") in paths.model_folders(())
    monkeypatch.setattr("sys.platform", "darwin")
    assert home / "Library" / "Caches" / "llama.cpp" in paths.model_folders(())


def test_the_folder_that_lm_studio_was_set_to_is_scanned(home: Path) -> None:
    settings = home / ".lmstudio" / "settings.json"
    settings.parent.mkdir(parents=True)
    for text, is_read in (
        ('{"downloadsFolder": "/big/models"}', True),
        ('{"downloadsFolder": 7}', False),
        ('{"downloadsFolder": "models"}', False),
        ("[", False),
    ):
        settings.write_text(text)
        folders = paths.model_folders(())
        assert (Path("/big/models") in folders) is is_read
        assert settings.parent / "models" in folders


def test_without_any_home_the_folders_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr("pwd.getpwuid", lambda _: {}["nobody"])
        assert main.run(["where"]) == 1
    assert "No home folder: could not determine" in capsys.readouterr().err
