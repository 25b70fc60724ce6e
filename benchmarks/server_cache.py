"""Two chats and a restart, in kvchat and in llama-server: first tokens and bytes.

    python benchmarks/server_cache.py MODEL --server BINARY [--tokens 2000] [--rounds 3]
        [--threads 2] [--own-libraries]

Both programs read the same two texts of about `--tokens` tokens with the same model, threads,
context, batch sizes and (unless --own-libraries) the same llama.cpp libraries. The scenario:

    A, B            each chat from nothing
    A again, B again    the same text, an answer and a question behind it
    restart         the program is ended and started; the pages of its cache files are dropped
    A after, B after    another answer and question behind the same text

The sides: kvchat with one and with two sequences in the context; llama-server with one slot and no
RAM cache, one slot with `--cache-ram`, two slots, and two slots that are saved by hand before the
restart and restored by hand after it (`--slot-save-path`; the time of the restore is part of the
first token there, the time of the save is told apart). Time to first token is that of the request,
to the first piece of text over HTTP or through kvchat's pipe.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import psutil
from common import ask_timed, drop_pages, load, wait_for_cache
from speed_peers.server import free_port, last_line

from engine.cache.report import CacheSettings
from engine.configuration import PredictorName, SpeculationSettings
from engine.memory.units import MIB
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest

SENTENCES = {
    "A": "The keeper wrote down every passing ship, its flag, its course and the weather. ",
    "B": "In the museum of clocks a guide explained how each of the wheels had been cut. ",
}
TOKENS_OF_SENTENCE = 17
TURNS = {
    "again": "So the book was full by the end of the year.\n\nWho read it in the winter?",
    "after": "Nobody ever asked for the third of the volumes.\n\nWhere did it lie then?",
}
STEPS = ("A", "B", "A again", "B again", "A after", "B after")
MAX_TOKENS = 16
CACHE_RAM_MIB = 1024
START_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What one run of the scenario measured on one side."""

    first_token_s: dict[str, float] = field(default_factory=dict)
    n_prompt: int = 0
    n_computed: dict[str, int] = field(default_factory=dict)
    rss_bytes: int = 0
    disk_bytes: int = 0
    save_s: float | None = None


def text_of(step: str, n_tokens: int) -> str:
    chat, _, turn = step.partition(" ")
    return SENTENCES[chat] * (n_tokens // TOKENS_OF_SENTENCE) + TURNS.get(turn, "")


class Kvchat:
    """kvchat's engine in its process, with so many sequences."""

    def __init__(self, options: argparse.Namespace, folder: Path, n_slots: int) -> None:
        self._options, self._folder, self._n_slots = options, folder / "states", n_slots
        self._engine = self._start()

    def ask(self, step: str, outcome: Outcome) -> None:
        owner = f"chat:{step[0]}"
        timed = ask_timed(
            self._engine,
            GenerationRequest(
                raw_prompt=text_of(step, self._options.tokens), max_tokens=MAX_TOKENS, owner=owner
            ),
        )
        outcome.first_token_s[step] = timed.first_token_s
        outcome.n_prompt = timed.reuse.n_prompt
        outcome.n_computed[step] = timed.reuse.n_read

    def restart(self, outcome: Outcome) -> None:
        outcome.rss_bytes = self._engine.client.process_memory_bytes() or 0
        self._engine.client.close()
        outcome.disk_bytes = dropped(self._folder)
        self._engine = self._start()

    def close(self) -> None:
        self._engine.client.close()

    def _start(self) -> BlockingClient:
        engine = load(
            self._options.model,
            cache=CacheSettings(folder=self._folder),
            n_ctx=context_of(self._options) * self._n_slots,
            n_slots=self._n_slots,
            n_threads=self._options.threads,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
        )
        wait_for_cache(engine)
        return engine


class Server:
    """llama-server with so many slots, with its RAM cache or not, saved by hand or not."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        *,
        n_slots: int,
        cache_ram_mib: int = 0,
        is_saved: bool = False,
    ) -> None:
        self._options, self._folder = options, folder
        self._n_slots, self._cache_ram_mib, self._is_saved = n_slots, cache_ram_mib, is_saved
        self._restored: set[str] = set()
        self._start()

    def ask(self, step: str, outcome: Outcome) -> None:
        slot = 0 if self._n_slots == 1 else "AB".index(step[0])
        body = {
            "prompt": text_of(step, self._options.tokens),
            "n_predict": MAX_TOKENS,
            "temperature": 0.0,
            "cache_prompt": True,
            "id_slot": slot,
            "stream": True,
        }
        started = time.perf_counter()
        if step.endswith("after") and self._is_saved:
            self._post(f"/slots/{slot}?action=restore", {"filename": f"slot{slot}.bin"})
        outcome.first_token_s[step], timings = self._stream(body, started)
        outcome.n_prompt = timings["cache_n"] + timings["prompt_n"]
        outcome.n_computed[step] = timings["prompt_n"]

    def restart(self, outcome: Outcome) -> None:
        if self._is_saved:
            started = time.perf_counter()
            for slot in range(self._n_slots):
                self._post(f"/slots/{slot}?action=save", {"filename": f"slot{slot}.bin"})
            outcome.save_s = time.perf_counter() - started
        outcome.rss_bytes = psutil.Process(self._process.pid).memory_info().rss
        self.close()
        outcome.disk_bytes = dropped(self._folder)
        self._start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _start(self) -> None:
        self._port = free_port()
        n_ctx, threads = context_of(self._options) * self._n_slots, str(self._options.threads)
        command = [
            str(self._options.server), "--model", str(self._options.model.resolve()),
            "--ctx-size", str(n_ctx), "--threads", threads, "--threads-batch", threads,
            "--parallel", str(self._n_slots), "--no-kv-unified", "--host", "127.0.0.1",
            "--port", str(self._port), "--no-webui", "--cache-ram", str(self._cache_ram_mib),
            "--slot-save-path", str(self._folder),
        ]  # fmt: skip
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
        self._process = subprocess.Popen(
            command, env=environment(self._options), stdout=self._log, stderr=self._log
        )
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self._address("/health"), timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"llama-server did not start: {last_line(self._log)}")

    def _address(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def _post(self, path: str, body: dict[str, object]) -> None:
        with self._opened(path, body) as answer:
            answer.read()

    def _stream(self, body: dict[str, object], started: float) -> tuple[float, dict[str, int]]:
        """The time to the first piece of text, and the server's own account."""
        first_s = None
        with self._opened("/completion", body) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                said = json.loads(line[len(b"data: ") :])
                if first_s is None and (said.get("content") or said.get("tokens")):
                    first_s = time.perf_counter() - started
                if said.get("stop") and first_s is not None:
                    return first_s, said["timings"]
        sys.exit("llama-server ended a reply before its first token")

    @contextmanager
    def _opened(self, path: str, body: dict[str, object]) -> "Iterator[object]":
        request = urllib.request.Request(
            self._address(path), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            yield answer


SIDES: dict[str, Callable[[argparse.Namespace, Path], Kvchat | Server]] = {
    "kvchat, 1 sequence": lambda options, folder: Kvchat(options, folder, 1),
    "kvchat, 2 sequences": lambda options, folder: Kvchat(options, folder, 2),
    "server, 1 slot": lambda options, folder: Server(options, folder, n_slots=1),
    "server, 1 slot, --cache-ram": lambda options, folder: Server(
        options, folder, n_slots=1, cache_ram_mib=CACHE_RAM_MIB
    ),
    "server, 2 slots": lambda options, folder: Server(options, folder, n_slots=2),
    "server, 2 slots, saved by hand": lambda options, folder: Server(
        options, folder, n_slots=2, is_saved=True
    ),
}


def main() -> None:
    options = parsed()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in SIDES}
    names = list(SIDES)
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            outcomes[name].append(run(options, name))
            times = outcomes[name][-1].first_token_s
            print(f"{name:32}" + "".join(f"{times[step]:9.3f}" for step in STEPS), flush=True)
    report(outcomes)


def run(options: argparse.Namespace, name: str) -> Outcome:
    """Run the scenario once on one side."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="kvchat-server-") as folder:
        side = SIDES[name](options, Path(folder))
        try:
            for step in STEPS:
                if step == "A after":
                    side.restart(outcome)
                side.ask(step, outcome)
        finally:
            side.close()
    return outcome


def report(outcomes: dict[str, list[Outcome]]) -> None:
    print(f"\nseconds to the first token, medians of {len(next(iter(outcomes.values())))} rounds")
    print(f"{'':32}" + "".join(f"{step:>9}" for step in STEPS) + f"{'RAM MiB':>9}{'disk MiB':>9}")
    for name, runs in outcomes.items():
        row = "".join(f"{median(run.first_token_s[step] for run in runs):9.3f}" for step in STEPS)
        memory = median(run.rss_bytes for run in runs) / MIB
        disk = median(run.disk_bytes for run in runs) / MIB
        print(f"{name:32}{row}{memory:9.0f}{disk:9.1f}")
    print(f"\ntokens of the prompt that were computed, of {runs[-1].n_prompt}")
    for name, runs in outcomes.items():
        print(f"{name:32}" + "".join(f"{runs[-1].n_computed[step]:9}" for step in STEPS))
    saves = [run.save_s for runs in outcomes.values() for run in runs if run.save_s is not None]
    print(f"\nsaving two slots by hand took {1e3 * statistics.median(saves):.0f} ms; RAM is the")
    print("resident size of the process before the restart, the mapped model included")


def median(values: "Iterator[float]") -> float:
    return statistics.median(values)


def context_of(options: argparse.Namespace) -> int:
    return max(4096, 2 * options.tokens)


def dropped(folder: Path) -> int:
    """Drop the pages of a folder's files, and give their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    drop_pages(files)
    return sum(path.stat().st_size for path in files)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Let llama-server compute with the libraries that kvchat loads."""
    own = Path(llama_cpp.__file__).parent / "lib"
    folders: Sequence[Path] = (options.server.parent,)
    if not options.own_libraries:
        folders = (own, *folders)
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(str(each.resolve()) for each in folders),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", type=Path, required=True, help="program llama-server")
    parser.add_argument("--own-libraries", action="store_true", help="those beside llama-server")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
