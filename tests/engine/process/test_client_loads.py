"""Loading, switching and leaving, beside a process that only plays the engine's part."""

import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine.process.client
from engine.background import ThreadFault
from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import Event, Failed, Loaded, WorkerStopped
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
PLAYED = f"""
    import json, os, signal, sys, time
    from multiprocessing.connection import Connection
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    from engine.events import Failed
    from engine.process.protocol import Close, Load, Ping, Pong
    from tests.support.fakes_client import loaded

    connection, folder, name = Connection(int(sys.argv[2])), Path(sys.argv[1]), ""

    def gate(name):
        while not (folder / name).exists():
            time.sleep(0.005)

    def note(*facts):
        with (folder / "journal").open("a") as journal:
            journal.write(json.dumps([os.getpid(), *facts]) + "\\n")

    while True:
        command = connection.recv()
        match command:
            case Load(configuration):
                name = configuration.model_path.stem
                note("Load", name, configuration.use_extra_buffers)
                if "crash" in name and ("always" in name or configuration.use_extra_buffers):
                    os.kill(os.getpid(), signal.SIGABRT)
                if "lingers" in name:
                    connection.close()
                    time.sleep(3600)
                if "gated" in name:
                    gate("open")
                if "never" not in name:
                    connection.send((loaded(configuration),))
                while "deaf" in name:
                    time.sleep(1)
            case Close():
                note("Close", name)
                if "talks" in name:
                    connection.send((Failed("late", name),))
                if "saves" in name:
                    gate("saved")
                os._exit(0)
            case Ping():
                connection.send(Pong())
            case _:
                note(type(command).__name__, name)
"""

Journal = list[list[object]]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerClient]:
    monkeypatch.setattr(engine.process.client, "POLL_S", 0.05)
    client = make_client(tmp_path)
    yield client
    client.close()


def make_client(
    folder: Path, silence_limit_s: float = PATIENCE_S, log_path: Path | None = None
) -> WorkerClient:
    script = folder / "played.py"
    script.write_text(textwrap.dedent(PLAYED))
    return WorkerClient(
        log_path=log_path or folder / "engine.log",
        command=(sys.executable, str(script), str(folder)),
        silence_limit_s=silence_limit_s,
    )


def model(name: str) -> Configuration:
    return Configuration(Path(f"{name}.gguf"), n_ctx=256)


def journal(folder: Path, what: str = "Load") -> Journal:
    path = folder / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [facts for facts in map(json.loads, lines) if facts[1] == what]


def loads(folder: Path) -> Journal:
    """Model and use of extra buffers of each load that a process was asked for."""
    return [facts[2:] for facts in journal(folder)]


def events_up_to(client: WorkerClient, *kinds: type[Event]) -> list[Event]:
    events: list[Event] = []

    def has_come() -> bool:
        events.extend(client.poll(0.05))
        return any(isinstance(event, kinds) for event in events)

    wait_until(has_come)
    return events


def test_no_event_of_the_previous_engine_arrives_after_a_load(
    client: WorkerClient, tmp_path: Path
) -> None:
    client.load(model("first that talks"))
    wait_until(lambda: client.is_alive)  # its events are not polled yet

    client.load(model("second"))
    events = events_up_to(client, Loaded)

    assert [type(event) for event in events] == [Loaded]
    assert isinstance(events[0], Loaded)
    assert events[0].configuration == model("second")
    assert journal(tmp_path, "Close"), "the first was not asked to end"


def test_of_many_loads_while_the_engine_before_writes_down_only_the_last_is_begun(
    client: WorkerClient, tmp_path: Path
) -> None:
    client.load(model("saves"))
    events_up_to(client, Loaded)
    for _ in range(10):
        client.load(model("never"))
    client.load(model("last"))
    (tmp_path / "saved").touch()

    assert [type(event) for event in events_up_to(client, Loaded)] == [Loaded]
    assert [name for name, _ in loads(tmp_path)] == ["saves", "last"]


def test_an_engine_that_dies_while_another_is_asked_for_does_not_take_it_along(
    client: WorkerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.load(model("first"))
    wait_until(lambda: client.is_alive)
    front_end = threading.get_ident()

    def monotonic() -> float:
        # The front end has looked at the first process and is about to end it.
        if threading.get_ident() == front_end and len(journal(tmp_path)) == 1:
            os.kill(int(str(journal(tmp_path)[0][0])), signal.SIGKILL)
            wait_until(lambda: len(journal(tmp_path)) == 2)
        return time.monotonic()

    with monkeypatch.context() as patch:
        patch.setattr(engine.process.client, "time", SimpleNamespace(monotonic=monotonic))
        client.load(model("second"))
        events = events_up_to(client, Loaded)

    assert [type(event) for event in events] == [Loaded]
    assert not journal(tmp_path, "Close")
    assert client.is_alive


def test_a_model_that_crashes_with_and_without_extra_buffers_slows_no_other(
    client: WorkerClient, tmp_path: Path
) -> None:
    client.load(model("crashes always"))
    wait_until(lambda: not client.is_busy)
    stopped = client.poll()
    client.load(model("good"))
    events_up_to(client, Loaded)

    assert [isinstance(e, WorkerStopped) and e.will_restart for e in stopped] == [True, False]
    assert loads(tmp_path) == [["crashes always", True], ["crashes always", False], ["good", True]]


@pytest.mark.parametrize("is_begun", [True, False], ids=["loading", "starting"])
def test_a_switch_while_a_model_loads_holds(
    client: WorkerClient, tmp_path: Path, *, is_begun: bool
) -> None:
    client.load(model("gated"))
    if is_begun:
        wait_until(lambda: journal(tmp_path))
    off = SpeculationSettings(predictor=PredictorName.OFF)
    client.set_speculation(off)
    n_before = len(journal(tmp_path, "SetSpeculation"))
    (tmp_path / "open").touch()
    event = events_up_to(client, Loaded)[-1]

    assert isinstance(event, Loaded)
    assert event.configuration.speculation == off
    wait_until(lambda: len(journal(tmp_path, "SetSpeculation")) > n_before)


def test_a_load_that_is_stopped_ends_and_another_may_follow(
    client: WorkerClient, tmp_path: Path
) -> None:
    client.load(model("never"))
    wait_until(lambda: journal(tmp_path))
    client.stop()
    events = client.poll()

    assert [isinstance(event, Failed) and event.fatal for event in events] == [True]
    assert not client.is_busy
    assert not client.is_alive
    client.load(model("good"))
    assert [type(event) for event in events_up_to(client, Loaded)] == [Loaded]


def test_asking_while_a_model_loads_is_refused_with_what_is_under_way(client: WorkerClient) -> None:
    client.load(model("never"))
    client.generate(GenerationRequest())
    (event,) = client.poll()
    assert isinstance(event, Failed)
    assert event.message.startswith("a model is being loaded")


def test_an_engine_that_hangs_while_it_ends_is_killed(
    client: WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.process.client, "SAVE_LIMIT_S", 0.1)
    client.load(model("lingers"))
    (event,) = events_up_to(client, WorkerStopped)
    assert isinstance(event, WorkerStopped)
    assert event.exit_code == -signal.SIGKILL


def test_closing_begins_without_waiting_and_reports_its_end(
    client: WorkerClient, tmp_path: Path
) -> None:
    client.load(model("saves"))
    events_up_to(client, Loaded)

    client.begin_close()
    wait_until(lambda: journal(tmp_path, "Close"))
    assert not client.has_ended
    (tmp_path / "saved").touch()
    wait_until(lambda: client.has_ended)


def test_a_front_end_that_waits_to_write_to_a_hung_engine_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.process.client, "POLL_S", 0.05)
    client = make_client(tmp_path)
    client.load(model("deaf never"))
    wait_until(lambda: journal(tmp_path))
    monkeypatch.setattr(client, "_silence_limit_s", 1.0)

    client.prefetch((Message("user", "more than a pipe holds " * 100_000),))
    events = events_up_to(client, WorkerStopped)

    assert isinstance(events[-1], WorkerStopped)
    assert "not answer" in events[-1].message
    client.close()


def test_time_in_which_the_front_end_stood_still_itself_is_nobodys_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.process.client, "POLL_S", 0.05)
    clock = SimpleNamespace(gone_s=0.0, n_asked=0)

    def monotonic() -> float:
        clock.n_asked += 1
        return time.monotonic() + clock.gone_s

    monkeypatch.setattr(engine.process.client, "time", SimpleNamespace(monotonic=monotonic))
    client = make_client(tmp_path)
    client.load(model("first"))
    events_up_to(client, Loaded)
    pid = int(str(journal(tmp_path)[0][0]))
    os.kill(pid, signal.SIGSTOP)
    clock.gone_s, clock.n_asked = 10 * PATIENCE_S, 0
    wait_until(lambda: clock.n_asked > 20)
    os.kill(pid, signal.SIGCONT)
    assert client.is_alive
    client.prefetch((Message("user", "more"),))
    wait_until(lambda: journal(tmp_path, "Prefetch"))
    assert client.poll() == []
    client.close()


def test_an_engine_whose_log_cannot_be_written_starts_with_one_note(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    client = make_client(tmp_path, log_path=tmp_path / "state" / "worker.log")
    notes = []
    for name in ("first", "second"):
        client.load(model(name))
        event = events_up_to(client, Loaded)[-1]
        assert isinstance(event, Loaded)
        notes += [event.notes]
    client.close()
    assert "worker.log" in notes[0][-1]
    assert not any("worker.log" in note for note in notes[1])


def test_a_fault_of_the_clients_own_thread_is_reported_and_the_next_load_works(
    client: WorkerClient, monkeypatch: pytest.MonkeyPatch, thread_faults: list[ThreadFault]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WorkerClient, "_completed", lambda *_: {}["no such answer"])
        client.load(model("first"))
        stopped = events_up_to(client, WorkerStopped)[-1]
    assert isinstance(stopped, WorkerStopped)
    assert thread_faults[0].reference in stopped.message
    assert not client.is_busy
    client.load(model("second"))
    assert isinstance(events_up_to(client, Loaded)[-1], Loaded)
