"""Fixtures for every test: where the real models are."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from engine.background import ThreadFault, set_fault_handler

settings.register_profile("kvchat", deadline=None)  # no test asserts the clock
settings.load_profile("kvchat")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of tests start kvchat: compile it once
sys.dont_write_bytecode = False
gc.set_threshold(50_000, 20, 20)  # one second in six went into garbage of thousands of tests
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what ends with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
MODELS = Path(os.environ.get("KVCHAT_TEST_MODELS", ROOT / ".cache" / "models"))


def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are cores: tests of screens and processes wait a good deal."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(8, 2 * (n_cores or 1))


def real_model(name: str) -> Path:
    path = MODELS / name
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make test-models` (or `make test`) first")
    return path


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep every test out of the folders of the user who runs it."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("DATA", "CONFIG", "STATE", "CACHE"):
            patch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
        yield


@pytest.fixture
def thread_faults() -> Iterator[list[ThreadFault]]:
    """The faults of threads, which fail a test that does not ask for them."""
    seen: list[ThreadFault] = []
    set_fault_handler(seen.append)
    yield seen
    set_fault_handler(None)


@pytest.fixture(autouse=True)
def _no_store_stays_open() -> Iterator[None]:
    """Close what `tests.support.fakes_app` opened: each store has a thread and file descriptors."""
    yield
    fakes = sys.modules.get("tests.support.fakes_app")
    while fakes is not None and fakes.OPENED:
        fakes.OPENED.pop().close()


@pytest.fixture(scope="session")
def starter_path() -> Path:
    return real_model("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    return real_model("gemma-3-270m-Q4_K_M.gguf")


@pytest.fixture(autouse=True)
def _no_fault_is_outlived(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which the application outlived a fault; one that wants faults is marked."""
    from app.paths import faults_dir

    folder = faults_dir()
    yield
    reports = {path.name: path.read_text() for path in sorted(folder.glob("*.txt"))}
    for name in reports:
        (folder / name).unlink()
    if reports and request.node.get_closest_marker("faults") is None:
        pytest.fail("\n".join(reports.values()))
