"""`kvchat cache export` and `import`: a chat's line goes out, and comes back into another cache."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import paths
from app.cache import cached_models
from app.config import load_settings
from app.opening import ModelRequest, loaded_engine, open_model
from engine.backends.llama_cpp.slot_file import read_slot_file
from engine.cache.snapshot_store import SnapshotStore
from engine.events import Finished, PromptReady, TiersChanged
from engine.requests import GenerationRequest
from tests.app.cli.conftest import kvchat
from tests.real_server import llama_server

pytestmark = [pytest.mark.model, pytest.mark.slow]
LINE = tuple(range(1000, 1200))


def answer(path: Path) -> tuple[PromptReady, Finished]:
    """What is told of the line as a prompt, by an engine that keeps what it computes."""
    settings = load_settings().settings
    opened = open_model(ModelRequest(model=str(path), kv="f16"), settings)
    cache = settings.cache.cache(paths.snapshots_dir())
    with loaded_engine(opened.configuration, print, cache=cache) as engine:
        for event in engine.events(60):
            if isinstance(event, TiersChanged) and len(event.report.tiers) > 1:
                break
        request = GenerationRequest(prompt_tokens=LINE, max_tokens=8, seed=1, owner="chat:1")
        events = list(engine.reply(request))
    ready = next(event for event in events if isinstance(event, PromptReady))
    assert isinstance(events[-1], Finished)
    return ready, events[-1]


def exported(slot: Path, *options: str) -> None:
    """Write the longest line that is kept."""
    with SnapshotStore(paths.snapshots_dir()) as folder:
        (model,) = cached_models(folder)
        key = max(model.entries, key=lambda entry: entry.end).key
    done = kvchat("cache", "export", key[:9], str(slot), *options)
    assert done.returncode == 0, done.stderr


def test_a_line_goes_out_and_comes_back_into_an_empty_cache(
    starter_path: Path, tmp_path: Path
) -> None:
    slot = tmp_path / "chat.slot"
    ready, said = answer(starter_path)
    assert ready.n_reused == 0
    exported(slot)
    assert read_slot_file(slot).tokens[: len(LINE)] == LINE
    assert kvchat("cache", "export", "0", str(slot)).returncode == 2, "it is there already"

    assert kvchat("cache", "clear", "--yes").returncode == 0
    done = kvchat("cache", "import", str(slot), "--model", str(starter_path))
    assert done.returncode == 0, done.stderr
    assert "tokens of chat.slot are kept" in done.stderr
    again, same = answer(starter_path)
    assert again.n_cold == len(LINE) - 1
    assert same.text == said.text


def test_another_models_slot_and_a_broken_one_are_refused(
    starter_path: Path, tmp_path: Path
) -> None:
    slot = tmp_path / "chat.slot"
    answer(starter_path)
    exported(slot)
    data = bytearray(slot.read_bytes())
    data[12:16] = (1 << 30).to_bytes(4, "little")
    slot.write_bytes(data)
    done = kvchat("cache", "import", str(slot), "--model", str(starter_path))
    assert done.returncode == 1
    assert "none of this model's" in done.stderr
    slot.write_bytes(data[:2000])
    done = kvchat("cache", "import", str(slot), "--model", str(starter_path))
    assert done.returncode == 1
    assert "cut off" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def server(starter_path: Path, tmp_path: Path) -> Iterator[str]:
    options = ("--ctx-size", "4096", "--parallel", "2", "--threads", "1")
    slots = ("--slot-save-path", f"{tmp_path}/")
    with llama_server(starter_path, tmp_path / "log", *options, *slots) as process:
        yield process.url


def post(url: str, body: dict[str, object]) -> dict[str, object]:
    asked = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as given:
        answered: dict[str, object] = json.load(given)
    return answered


def test_llama_server_goes_on_from_a_chat_and_a_chat_from_its_slot(
    server: str, starter_path: Path, tmp_path: Path
) -> None:
    answer(starter_path)
    exported(tmp_path / "chat.slot", "--slots", "2")
    restored = post(f"{server}/slots/0?action=restore", {"filename": "chat.slot"})
    assert restored["n_restored"] == len(read_slot_file(tmp_path / "chat.slot").tokens)
    asked = {"prompt": [*LINE, 1300], "id_slot": 0, "n_predict": 4, "cache_prompt": True}
    told = post(f"{server}/completion", asked)["timings"]
    assert isinstance(told, dict)
    assert told["cache_n"] >= len(LINE) - 1, "the server computed it anew"

    saved = post(f"{server}/slots/0?action=save", {"filename": "server.slot"})
    tokens = read_slot_file(tmp_path / "server.slot").tokens
    assert tokens[: len(LINE) + 1] == (*LINE, 1300)
    assert saved["n_saved"] in (len(tokens), len(tokens) + 1)
    assert kvchat("cache", "clear", "--yes").returncode == 0
    slot = str(tmp_path / "server.slot")
    done = kvchat("cache", "import", slot, "--model", str(starter_path))
    assert done.returncode == 0, done.stderr
    assert answer(starter_path)[0].n_cold == len(LINE) - 1
