"""The engine's process, on the real starter model: it answers, it stops, it dies without harm."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    PromptProgress,
    SpeculationChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.client import FALLBACK_NOTE, WorkerClient
from engine.requests import GenerationRequest, Message
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.model


def collect(client: WorkerClient, is_last: Callable[[Event], bool]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for event in client.poll(0.2):
            events.append(event)
            if is_last(event):
                return events
    raise AssertionError(f"no last event among {[type(event).__name__ for event in events]}")


def is_end(event: Event) -> bool:
    return isinstance(event, Finished | Failed | WorkerStopped)


def ask(text: str, max_tokens: int | None = 12) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), max_tokens=max_tokens)


@pytest.fixture
def configuration(starter_path: Path) -> Configuration:
    return Configuration(model_path=starter_path, n_ctx=4096, n_ubatch=512, n_threads=1)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WorkerClient]:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    yield client
    client.close()


@pytest.fixture
def loaded(client: WorkerClient, configuration: Configuration) -> WorkerClient:
    client.load(configuration)
    events = collect(client, lambda event: isinstance(event, Loaded) or is_end(event))
    assert isinstance(events[-1], Loaded), events
    return client


def worker_of(client: WorkerClient) -> psutil.Process:
    children = psutil.Process().children()
    workers = [child for child in children if "engine.process.worker" in " ".join(child.cmdline())]
    assert len(workers) == 1
    return workers[0]


def test_a_reply_is_generated_and_reported(loaded: WorkerClient) -> None:
    loaded.generate(ask("Name three colours.", 30))
    events = collect(loaded, is_end)
    reply = events[-1]
    assert isinstance(reply, Finished)
    assert reply.text.strip()
    assert "".join(e.text for e in events if isinstance(e, TokensCommitted)) == reply.text
    assert (loaded.process_memory_bytes() or 0) > 50_000_000
    assert not loaded.is_busy


def test_what_the_engine_prints_goes_to_its_log(
    loaded: WorkerClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded.generate(ask("hello", 2))
    collect(loaded, is_end)
    out, err = capfd.readouterr()
    assert out == err == ""
    assert (tmp_path / "engine.log").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_stop_is_obeyed_in_the_middle_of_a_prefill(loaded: WorkerClient) -> None:
    loaded.generate(ask("Name three colours.", 20))
    before = collect(loaded, is_end)[-1]
    assert isinstance(before, Finished)
    loaded.generate(ask("word " * 3000))
    collect(loaded, lambda event: isinstance(event, PromptProgress))
    loaded.stop()
    reply = collect(loaded, is_end)[-1]
    assert isinstance(reply, Finished)
    assert reply.reason is FinishReason.CANCELLED
    assert not reply.token_ids
    loaded.generate(ask("Name three colours.", 20))
    after = collect(loaded, is_end)[-1]
    assert isinstance(after, Finished)
    assert after.text == before.text


def test_a_killed_engine_is_an_event_and_can_be_loaded_again(
    loaded: WorkerClient, configuration: Configuration
) -> None:
    loaded.generate(ask("Write a long story.", None))
    collect(loaded, lambda event: isinstance(event, TokensCommitted))
    worker_of(loaded).kill()
    stopped = collect(loaded, is_end)[-1]
    assert isinstance(stopped, WorkerStopped)
    assert "SIGKILL" in stopped.message
    assert "Restart" in stopped.message
    assert not loaded.is_alive
    loaded.generate(ask("hello"))
    assert isinstance(collect(loaded, is_end)[-1], Failed)
    loaded.load(configuration)
    collect(loaded, lambda event: isinstance(event, Loaded))
    assert loaded.is_alive


def stopped_by_watchdog(client: WorkerClient) -> WorkerStopped:
    """Have the client lose its patience; the next process has all of it."""
    client._silence_limit_s = 2.0
    stopped = collect(client, lambda event: isinstance(event, WorkerStopped))[-1]
    client._silence_limit_s = PATIENCE_S
    assert isinstance(stopped, WorkerStopped)
    return stopped


def test_a_hung_engine_is_killed_and_started_again(loaded: WorkerClient) -> None:
    worker = worker_of(loaded)
    worker.send_signal(signal.SIGSTOP)
    stopped = stopped_by_watchdog(loaded)
    assert stopped.will_restart
    assert "not answer" in stopped.message
    collect(loaded, lambda event: isinstance(event, Loaded))
    assert worker_of(loaded).pid != worker.pid


def test_a_model_that_cannot_be_loaded_is_reported_and_the_client_lives(
    client: WorkerClient, tmp_path: Path, configuration: Configuration
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    client.load(Configuration(model_path=broken, n_ctx=512))
    failed = collect(client, is_end)[-1]
    assert isinstance(failed, Failed)
    assert failed.fatal
    assert "broken.gguf" in failed.message
    client.load(configuration)
    assert isinstance(collect(client, lambda e: isinstance(e, Loaded))[-1], Loaded)


def test_the_predictor_is_switched_while_it_answers(loaded: WorkerClient) -> None:
    loaded.generate(ask("Count from one to fifty in words.", 80))
    collect(loaded, lambda event: isinstance(event, TokensCommitted))
    loaded.set_speculation(SpeculationSettings(predictor=PredictorName.OFF))
    events = collect(loaded, is_end)
    assert any(isinstance(e, SpeculationChanged) and e.predictor == "off" for e in events)


def test_asking_while_busy_is_refused(loaded: WorkerClient) -> None:
    loaded.generate(ask("Write a story.", 40))
    loaded.generate(ask("And another."))
    events = collect(loaded, is_end)
    assert isinstance(events[-1], Failed)
    assert "stop it first" in events[-1].message
    assert isinstance(collect(loaded, is_end)[-1], Finished)


CRASHING_WORKER = """
    import os, sys, signal
    from multiprocessing.connection import Connection
    from engine import load as loading
    from engine.process import worker
    load = loading.load_session
    def crashing(configuration, *rest):
        if configuration.use_extra_buffers:
            os.kill(os.getpid(), signal.SIGSEGV)
        return load(configuration, *rest)
    loading.load_session = crashing
    worker.Worker(Connection(int(sys.argv[1]))).run()
"""


def test_a_crash_at_the_first_decode_is_retried_without_extra_buffers(
    tmp_path: Path, configuration: Configuration
) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(textwrap.dedent(CRASHING_WORKER))
    client = WorkerClient(log_path=tmp_path / "engine.log", command=(sys.executable, str(script)))
    client.load(configuration)
    events = collect(client, lambda event: isinstance(event, Loaded))
    client.close()
    stopped = next(event for event in events if isinstance(event, WorkerStopped))
    assert stopped.will_restart
    assert "SIGSEGV" in stopped.message
    assert isinstance(events[-1], Loaded)
    assert FALLBACK_NOTE in events[-1].notes


def test_the_engine_ends_when_its_front_end_is_killed(
    tmp_path: Path, configuration: Configuration
) -> None:
    script = f"""
        import time
        from pathlib import Path
        import psutil
        from engine.configuration import Configuration
        from engine.process.client import WorkerClient
        client = WorkerClient(log_path=Path({str(tmp_path / "engine.log")!r}))
        client.load(Configuration(model_path=Path({str(configuration.model_path)!r}), n_ctx=512))
        while not client.is_alive:
            time.sleep(0.05)
        print(psutil.Process().children()[0].pid, flush=True)
        time.sleep(60)
    """
    front_end = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert front_end.stdout is not None
    pid = int(front_end.stdout.readline())
    os.kill(front_end.pid, signal.SIGKILL)
    front_end.wait()
    front_end.stdout.close()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=PATIENCE_S)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
