"""How the environment is set up."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The set-up script, with an environment of its own and nothing installed."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import setup

    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "STAMP", tmp_path / "kvchat-setup")
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "bin" / "python")
    monkeypatch.setattr(setup, "install_llama", lambda flags, *, rebuild: None)
    monkeypatch.setattr(setup, "install_kvchat", lambda *, dev: None)
    yield setup
    del sys.modules["setup"]


@pytest.mark.parametrize(("options", "is_reused"), [([], True), (["--this-python"], False)])
def test_an_environment_of_another_python_is_replaced_only_where_a_python_is_named(
    setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], is_reused: bool
) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    monkeypatch.setattr(platform, "python_version", lambda: "3.13.0")
    monkeypatch.setattr(sys, "argv", ["setup.py", *options])
    monkeypatch.setattr(setup, "make_environment", lambda: tmp_path.mkdir(exist_ok=True))
    setup.main()
    assert (tmp_path / "pyvenv.cfg").is_file() is is_reused


def test_an_old_python_is_refused_in_one_sentence() -> None:
    program = (
        "import sys, runpy; sys.version_info = (3, 10, 4, 'final', 0);"
        f"sys.argv = ['setup.py']; sys.path.insert(0, {str(SCRIPTS)!r});"
        f"runpy.run_path({str(SCRIPTS / 'setup.py')!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, this is 3.10" in done.stderr
    assert "Traceback" not in done.stderr
