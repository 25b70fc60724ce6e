"""Threads that follow the machine against fixed numbers, beside busy processes of its own.

    python benchmarks/threads.py MODEL [--busy 0 1 2 4] [--seconds 6] [--rounds 3]
        [--llama-server FILE] [--binding] [--node FOLDER] [--transformers PYTHON] [--docs FILE]

For each number of busy processes all arms decode by turns, plainly and for the same time: kvchat
with `auto`, kvchat with each fixed number of threads, a llama-server with its own default and with
one thread, and the libraries that are named, each with its own default (how they are got stands in
`peers.py --help`). The first seconds of replies that begin beside a busy process
are a table of their own. Then a long reply meets a busy process that comes and goes, and the time
until the number of threads has followed is taken, and last what following costs on the idle
machine: its own code around each step, and what trials of other numbers lost. Tokens per second are
medians of the rounds; ratios are taken round by round. Run it on a machine that does nothing else.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, mode
from typing import ClassVar, TypeVar
from unittest.mock import patch

from common import load
from llama_cpp import Llama
from speed_peers.asked import Question, Sampling, Setup
from speed_peers.catalogue import Mode
from speed_peers.child import Child, binding_child, node_child, transformers_child

from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Finished, RoundFinished, ThreadsChanged
from engine.generation.threads import Threads
from engine.load import load_session
from engine.memory.hardware import usable_cores
from engine.process.blocking_client import BlockingClient
from engine.requests import Cancellation, GenerationRequest

PROMPT = "Once upon a time, in a harbour town with three bakeries, there lived a"
N_CTX = 4096
SETTLE_S = 1.0
"""What a busy process is given to start before anybody is timed."""
FOUND_S = 2.0
"""Start of a run that is not counted, for nobody: what finding a number takes is timed apart."""
FIRST_S = 4.0
"""What counts as the first seconds of a reply."""
IDLE_S = 30.0
"""Steps of an idle machine whose following is timed."""
AWAY_S = 4.0
"""How long a busy process stays, and stays away, while a reply follows it."""
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)
GREEDY = SamplingSettings(temperature=0.0)
BUSY = "while True: pass"
MARK = "<!-- table -->"

T = TypeVar("T")
Speed = Callable[[float, float], float]
"""Tokens per second: uncounted seconds from the start of a reply, and about as many counted ones.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--binding", action="store_true", help="llama-cpp-python as well")
    parser.add_argument("--node", type=Path, help="folder in which npm installed node-llama-cpp")
    parser.add_argument("--transformers", type=Path, help="a Python with torch and transformers")
    parser.add_argument("--docs", type=Path, help="page whose table is written anew")
    options = parser.parse_args()
    lines = []
    with arms(options) as speeds:
        lines += [*table(options, speeds), "", *beginnings(options, speeds)]
    lines += ["", *followed(options.model), "", *idle_cost(options.model)]
    print("\n".join(lines))
    if options.docs is not None:
        front = options.docs.read_text().split(MARK)[0]
        options.docs.write_text(f"{front}{MARK}\n" + "\n".join(lines) + "\n")


@contextmanager
def arms(options: argparse.Namespace) -> Iterator[dict[str, Speed]]:
    """Everything that decodes, loaded and idle."""
    n_physical, n_logical = usable_cores()
    numbers = sorted({1, n_physical, n_logical, max(1, n_physical // 2), max(1, n_physical - 1)})
    engines = {"auto": engine(options.model, None)}
    engines |= {f"{n} threads" if n > 1 else "1 thread": engine(options.model, n) for n in numbers}
    speeds: dict[str, Speed] = {
        name: (lambda waited, seconds, one=one: speed_of(one, waited, seconds))
        for name, one in engines.items()
    }
    servers: list[Server | Library] = []
    if options.llama_server is not None:
        for name, extra in (("llama-server", ()), ("llama-server -t 1", ("-t", "1"))):
            servers.append(Server(options.llama_server, options.model, extra))
            speeds[name] = servers[-1].speed
    for name, library in libraries(options):
        servers.append(library)
        speeds[name] = library.speed
    try:
        yield speeds
    finally:
        for one in engines.values():
            one.client.close()
        for server in servers:
            server.close()


def engine(model: Path, n_threads: int | None) -> BlockingClient:
    return load(model, n_ctx=N_CTX, n_threads=n_threads, speculation=PLAIN)


def speed_of(engine: BlockingClient, waited_s: float, seconds: float) -> float:
    """Tokens per second of kvchat; the first step of a reply belongs to its prompt."""
    asked = GenerationRequest(raw_prompt=PROMPT, sampling=GREEDY, max_tokens=N_CTX - 64)
    started, n_tokens, elapsed_s = None, 0, 0.0
    for event in engine.reply(asked):
        if not isinstance(event, RoundFinished):
            continue
        now = time.perf_counter()
        if started is None:
            started = now
        if now - started < waited_s:
            continue
        n_tokens, elapsed_s = n_tokens + event.n_emitted, elapsed_s + event.elapsed_s
        if now - started >= waited_s + seconds:
            engine.client.stop()
            break
    for event in engine.rest_of_reply():
        if isinstance(event, Finished):
            break
    return n_tokens / elapsed_s


@dataclass(slots=True)
class Server:
    """A llama-server on the loopback, asked for a stream that is left when time is up."""

    process: "subprocess.Popen[bytes]"
    url: str

    def __init__(self, binary: Path, model: Path, extra: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            str(binary), "-m", str(model), "-c", str(N_CTX), "--parallel", "1", "--host",
            "127.0.0.1", "--port", str(port), "--no-webui", *extra,
        ]  # fmt: skip
        log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the server
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.2)
        sys.exit(f"{binary} did not start")

    def speed(self, waited_s: float, seconds: float) -> float:
        body = {"prompt": PROMPT, "n_predict": N_CTX - 64, "temperature": 0.0, "stream": True}
        body |= {"ignore_eos": True, "cache_prompt": True}
        request = urllib.request.Request(
            f"{self.url}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        n_tokens, started, first, last = 0, 0.0, 0.0, 0.0
        with urllib.request.urlopen(request, timeout=120) as stream:
            for line in stream:
                if not line.startswith(b"data:"):
                    continue
                last, before = time.perf_counter(), last
                started = started or last
                if last - started < waited_s:
                    continue
                first = first or before
                n_tokens += 1
                if last - started >= waited_s + seconds:
                    break
        return n_tokens / (last - first)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@dataclass(frozen=True, slots=True)
class Library:
    """A library in a process of its own, with as many threads as it takes by itself."""

    child: Child
    tokens: tuple[int, ...]

    def speed(self, waited_s: float, seconds: float) -> float:
        question = Question("threads", "prompt", PROMPT, self.tokens)
        sampling = Sampling(0.0, N_CTX - 64, 1, max_s=waited_s + seconds)
        return self.child.ask(Mode("library", "plain"), question, sampling).tokens_per_second or 0.0

    def close(self) -> None:
        self.child.close()


def libraries(options: argparse.Namespace) -> Iterator[tuple[str, Library]]:
    """Those that are named, with the prompt as the model's tokens."""
    vocabulary = Llama(str(options.model), vocab_only=True, verbose=False)
    tokens = tuple(vocabulary.tokenize(PROMPT.encode()))
    setup = Setup(options.model, None, N_CTX, None, (vocabulary.token_eos(),))
    vocabulary.close()
    if options.binding:
        yield "llama-cpp-python", Library(binding_child(Path(sys.executable), setup), tokens)
    if options.node:
        yield "node-llama-cpp", Library(node_child(options.node, setup), tokens)
    if options.transformers:
        child = transformers_child(options.transformers, setup)
        yield "transformers", Library(child, tokens)


@contextmanager
def busy(n: int) -> Iterator[None]:
    """That many processes that compute and do nothing else."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def table(options: argparse.Namespace, speeds: dict[str, Speed]) -> list[str]:
    for speed in speeds.values():
        speed(FOUND_S, 1.0)
    head = ["busy processes", *speeds, "auto / best fixed", "auto / default"]
    lines = ["| " + " | ".join(head) + " |", "|--:" * len(head) + "|"]
    default = f"{usable_cores()[0]} threads"
    for n_busy in options.busy:
        rounds: list[dict[str, float]] = []
        for index in range(options.rounds):
            names = list(speeds) if index % 2 == 0 else list(reversed(speeds))
            with busy(n_busy):
                rounds.append({name: speeds[name](FOUND_S, options.seconds) for name in names})
        middle = {name: median(one[name] for one in rounds) for name in speeds}
        fixed = [name for name in speeds if "thread" in name]
        best = max(fixed, key=lambda name: middle[name])
        to_best = median(one["auto"] / one[best] for one in rounds)
        usual = default if default in speeds else "1 thread"
        to_usual = median(one["auto"] / one[usual] for one in rounds)
        cells = [str(n_busy), *(f"{middle[name]:.1f}" for name in speeds)]
        cells += [f"{to_best:.2f} ({best})", f"{to_usual:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr)
    return lines


def beginnings(options: argparse.Namespace, speeds: dict[str, Speed]) -> list[str]:
    """The first seconds of a reply that begins beside a busy process, behind one that did not."""
    arms = {name: speed for name, speed in speeds.items() if name == "auto" or "thread" in name}
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        found = {}
        for name, speed in arms.items():
            speed(0.0, FOUND_S)
            with busy(1):
                found[name] = speed(0.0, FIRST_S)
        rounds.append(found)
    fixed = [name for name in arms if "thread" in name]
    middle = {name: median(one[name] for one in rounds) for name in arms}
    ratio = median(one["auto"] / max(one[name] for name in fixed) for one in rounds)
    head = [f"first {FIRST_S:g} s of a reply beside one busy process", *arms, "auto / best fixed"]
    cells = ["tokens per second", *(f"{value:.1f}" for value in middle.values()), f"{ratio:.2f}"]
    return [
        "| " + " | ".join(head) + " |",
        "|---" + "|--:" * (len(head) - 1) + "|",
        "| " + " | ".join(cells) + " |",
    ]


def followed(model: Path) -> list[str]:
    """How long the number of threads takes to follow a busy process that comes and goes."""
    one = engine(model, None)
    lines = [
        "| moment | seconds until the number of threads followed | threads, why |",
        "|---|--:|---|",
    ]
    asked = GenerationRequest(raw_prompt=PROMPT, sampling=GREEDY, max_tokens=N_CTX - 64)
    process: subprocess.Popen[bytes] | None = None
    began = turned = time.perf_counter()
    seen: list[tuple[float, ThreadsChanged]] = []
    moments: list[tuple[str, list[tuple[float, ThreadsChanged]]]] = []
    for event in one.reply(asked):
        now = time.perf_counter()
        if isinstance(event, ThreadsChanged):
            seen.append((now - turned, event))
        if now - turned < AWAY_S:
            continue
        moments.append(("a process left" if process is None else "a process came", seen))
        seen, turned = [], now
        if process is None:
            process = subprocess.Popen([sys.executable, "-c", BUSY])
        else:
            process.kill()
            process.wait()
            process = None
        if now - began > 8 * AWAY_S:
            one.client.stop()
    if process is not None:
        process.kill()
        process.wait()
    one.client.close()
    for moment, changes in moments[1:]:
        last = changes[-1] if changes else None
        said = "not at all" if last is None else f"{last[0]:.2f}"
        what = "" if last is None else f"{last[1].n_decode}: {last[1].reason}"
        lines.append(f"| {moment} | {said} | {what} |")
    return lines


class TimedThreads(Threads):
    """Threads that count what their own code takes around the steps."""

    own_s: ClassVar[list[float]] = []
    decode_s: ClassVar[list[tuple[int, float]]] = []
    """Each step's number of threads and time."""

    def add_step(self, elapsed_s: float, n_steps: float) -> ThreadsChanged | None:
        self.decode_s.append((self.n_decode, elapsed_s))
        began = time.perf_counter()
        try:
            return super().add_step(elapsed_s, n_steps)
        finally:
            self.own_s.append(time.perf_counter() - began)


def idle_cost(model: Path) -> list[str]:
    """What following takes of plain steps on an idle machine."""
    asked = GenerationRequest(raw_prompt=PROMPT, sampling=GREEDY, max_tokens=N_CTX - 64)
    configuration = Configuration(model_path=model.resolve(), n_ctx=N_CTX, speculation=PLAIN)
    with patch("engine.load.Threads", TimedThreads):
        loaded = load_session(configuration)
    began = time.perf_counter()
    for _ in loaded.session.generate(asked, Cancellation()):
        if time.perf_counter() - began > IDLE_S:
            break
    loaded.session.close()
    own_s, steps = TimedThreads.own_s, TimedThreads.decode_s
    n_usual = mode(n for n, _ in steps)
    usual_s = median(step_s for n, step_s in steps if n == n_usual)
    lost_s = sum(max(step_s - usual_s, 0.0) for n, step_s in steps if n != n_usual)
    total_s = sum(step_s for _, step_s in steps)
    return [
        "| steps on the idle machine | a step | following, mean | median | of the time | trials |",
        "|--:|--:|--:|--:|--:|--:|",
        f"| {len(own_s)} | {usual_s * 1e3:.2f} ms | {fmean(own_s) * 1e6:.0f} µs "
        f"| {median(own_s) * 1e6:.0f} µs | {sum(own_s) / total_s:.2%} | {lost_s / total_s:.2%} |",
    ]


if __name__ == "__main__":
    main()
