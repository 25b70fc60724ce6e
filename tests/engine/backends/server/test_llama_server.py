"""A real llama-server, where there is one (`LLAMA_SERVER`, or in the path)."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.backends.server.session import ServerSession
from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Event, Finished, FinishReason, RoundFinished, TokensCommitted
from engine.memory.cards import parse_devices
from engine.memory.server_log import read_buffers
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.planning.machine import PlannedMachine
from engine.planning.measured import loaded_bytes
from engine.planning.planner import Planner
from engine.planning.report import export_request
from engine.planning.request import PlanRequest, setup_of
from engine.planning.workers import PROGRAM, workers_of
from engine.presets.llama_server import serving
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.process.server_process import ServerProcess, find_llama_server, free_port
from engine.requests import Cancellation, GenerationRequest, Message
from tests.support.real_server import llama_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTIONS = (
    "Write a line about cats, then the same line again, and again.",
    "Now with dogs \N{DOG FACE}, the same way.",
    "List: a, b, c, d, e. Twice.",
)
DRAFTING = (
    "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3",
    "--spec-ngram-simple-size-m", "4",
)  # fmt: skip


@pytest.fixture(scope="module")
def started(
    starter_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    options = ("--ctx-size", "4096", "--parallel", "2", "--threads", "1", "--ubatch-size", "1")
    log_path = tmp_path_factory.mktemp("server") / "log"
    with llama_server(starter_path, log_path, *options, "--metrics", *DRAFTING) as process:
        yield process


def chat(engine: BlockingClient) -> list[tuple[Finished, list[Event]]]:
    messages = [Message("system", "You are helpful.")]
    replies = []
    for question in QUESTIONS:
        messages.append(Message("user", question))
        request = GenerationRequest(
            messages=tuple(messages), sampling=SamplingSettings(), max_tokens=60
        )
        events = list(engine.reply(request))
        finished = events[-1]
        assert isinstance(finished, Finished)
        replies.append((finished, events))
        messages.append(
            Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
        )
    return replies


def chat_with(configuration: Configuration, log_path: Path) -> list[tuple[Finished, list[Event]]]:
    client = WorkerClient(log_path=log_path)
    try:
        engine = BlockingClient(client, limit_s=300)
        engine.load(configuration)
        return chat(engine)
    finally:
        client.close()


def test_its_text_is_the_engines_and_its_counts_are_those_of_its_log(
    started: ServerProcess, starter_path: Path, tmp_path: Path
) -> None:
    log = started.log_path
    n_before = len(log.read_text(errors="replace"))
    served = chat_with(Configuration.at_server(started.url), tmp_path / "one.log")
    here = chat_with(
        Configuration(
            starter_path,
            n_ctx=2048,
            n_batch=64,
            n_ubatch=1,
            n_threads=1,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
        ),
        tmp_path / "two.log",
    )
    assert [reply.text for reply, _ in served] == [reply.text for reply, _ in here]
    assert [reply.token_ids for reply, _ in served] == [reply.token_ids for reply, _ in here]
    written = log.read_text(errors="replace")[n_before:]
    logged = re.findall(r"\(\s*(\d+) accepted /\s*(\d+) generated\)", written)
    reported = [(r.stats.n_accepted, r.stats.n_drafted) for r, _ in served if r.stats.n_drafted]
    assert reported == [(int(accepted), int(drafted)) for accepted, drafted in logged]
    assert reported, "something was drafted"
    for reply, events in served:
        rounds = [event for event in events if isinstance(event, RoundFinished)]
        assert sum(each.n_accepted for each in rounds) == reply.stats.n_accepted
        assert sum(each.n_drafted for each in rounds) == reply.stats.n_drafted
        assert sum(each.n_emitted for each in rounds) == reply.stats.n_emitted
        text = "".join(e.text for e in events if isinstance(e, TokensCommitted))
        assert text == reply.text
    assert served[1][0].stats.n_reused > 0


def test_a_stopped_reply_frees_its_slot_and_can_be_gone_on_with(started: ServerProcess) -> None:
    session = ServerSession(Configuration.at_server(started.url))
    asked = GenerationRequest(raw_prompt="Once upon a time", max_tokens=400, seed=1)
    whole = session.begin(asked, Cancellation())
    while session.step():
        pass
    cancellation = Cancellation()
    generation = session.begin(asked, cancellation)
    while generation.reply.n_emitted < 8:
        session.step()
    cancellation.cancel()
    session.step()
    wait_until(
        lambda: any("slots: 0 of" in figure.text for figure in session.look().figures),
        "the slots are free",
    )
    cut = list(generation.take())[-1]
    assert isinstance(cut, Finished)
    assert cut.reason is FinishReason.CANCELLED
    following = GenerationRequest(
        raw_prompt=asked.raw_prompt, max_tokens=20, seed=1, continues=cut.token_ids
    )
    rest = session.begin(following, Cancellation())
    while session.step():
        pass
    session.close()
    assert whole.reply.text.startswith(cut.text + rest.reply.text)


@pytest.mark.parametrize("n_users", [1, 3])
def test_users_at_once_get_what_each_gets_alone(started: ServerProcess, n_users: int) -> None:
    session = ServerSession(Configuration.at_server(started.url))
    asked = [GenerationRequest(raw_prompt=f"{n} sheep", max_tokens=12) for n in range(n_users)]
    together = [session.begin(each, Cancellation()) for each in asked]
    while session.step():
        pass
    for request, found in zip(asked, together, strict=True):
        alone = session.begin(request, Cancellation())
        while session.step():
            pass
        assert found.reply.text == alone.reply.text, "rows of one token round as they do alone"
    session.close()


def test_a_killed_server_is_started_again_and_answers(starter_path: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    options = ("--ctx-size", "512")
    with llama_server(starter_path, tmp_path / "log", *options, report=reported.append) as process:
        session = ServerSession(Configuration.at_server(process.url))
        generation = session.begin(
            GenerationRequest(raw_prompt="Once", max_tokens=200), Cancellation()
        )
        while generation.reply.n_emitted < 4:
            session.step()
        assert process._popen is not None
        process._popen.kill()
        while session.step():
            pass
        assert generation.fault is not None
        assert generation.reply.text
        wait_until(lambda: process.n_starts == 2, "it is started again")
        wait_until(process._answers, "it answers again")
        again = session.begin(GenerationRequest(raw_prompt="Once", max_tokens=4), Cancellation())
        while session.step():
            pass
        assert again.fault is None
        assert again.reply.n_emitted == 4
        session.close()
    assert "started again" in reported[0]


def test_a_chat_runs_over_two_workers_that_hold_what_was_planned(
    starter_path: Path, tmp_path: Path
) -> None:
    worker = shutil.which(os.environ.get("LLAMA_RPC_SERVER") or PROGRAM)
    if worker is None or not os.environ.get("LLAMA_SERVER"):
        pytest.skip("no workers: name a llama-server with RPC in LLAMA_SERVER, LLAMA_RPC_SERVER")
    ports = [free_port("127.0.0.1") for _ in range(3)]
    machine = PlannedMachine(
        ram_bytes=16 * GIB,
        workers=workers_of(parse_devices(",".join(f"127.0.0.1:{port}:4GiB" for port in ports[:2]))),
    )
    planner = Planner()
    asked = PlanRequest(str(starter_path), machine=machine, rules={"n_ctx": 4096})
    plan = planner.plan(setup_of(asked, planner))
    logs = [tmp_path / f"worker{port}" for port in ports[:2]]
    with ExitStack() as running:
        for port, log in zip(ports, logs, strict=False):
            process = subprocess.Popen(
                [worker, "--host", "127.0.0.1", "--port", str(port), "--threads", "1"],
                env={**os.environ, "GGML_RPC_DEBUG": "1"},
                stdout=running.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            running.callback(process.wait)
            running.callback(process.kill)
            wait_until(lambda port=port: _listens(port))
        url = f"http://127.0.0.1:{ports[2]}"
        server = ServerProcess(
            [*serving(export_request(plan, port=ports[2], server=str(find_llama_server(None)))),
             "--log-verbosity", "4"],
            url=url, log_path=tmp_path / "server", report=lambda _: None,
        )  # fmt: skip
        running.callback(server.end)
        server.start(loading_s=120)
        replies = chat_with(Configuration.at_server(url), tmp_path / "engine.log")
        assert all(len(finished.text) > 20 for finished, _ in replies)
        found = loaded_bytes(read_buffers(tmp_path / "server"), plan.estimate.devices)
    for device, log in zip(plan.estimate.devices, logs, strict=False):
        sizes = re.findall(rb"\[alloc_buffer\] device: 0, size: (\d+)", log.read_bytes())
        planned = device.total_bytes - device.term(TermKind.OVERHEAD).nbytes
        assert planned == pytest.approx(sum(map(int, sizes)), rel=0.03)
        reported = sum(found[device.device.name].values())
        assert planned == pytest.approx(reported, rel=0.03)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
