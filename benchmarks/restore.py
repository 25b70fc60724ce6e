"""Whether restored states give the same logits, what restoring takes, and how soon a chat resumes.

    python benchmarks/restore.py MODEL... [--tokens 2000] [--rows 64] [--threads 2] [--pairs 5]

For each model three tables:

1. Equality. `--tokens` tokens are decoded and saved, `--rows` more are decoded one by one; then the
   state is restored, and the logits of the same tokens are compared bit by bit: `whole` in one
   state, `segments` in four, `branch` at two thirds with other tokens after it, `restart` in a new
   process. Once for one sequence alone and once for the third of four.
2. Times, medians of nine: saving a state (get) and its last 100 tokens (end), restoring it from
   eight segments (parts) and in one (set), for 600 tokens and `--tokens`.
3. Time to the first token of a chat, through the engine's process, medians of `--pairs` chats:
   from `nothing`; from the context itself (`hot`); from RAM after another chat took the context
   (`warm`); in a new process from the disk, the files' pages dropped (`cold`); and as cold, but the
   chat was opened a second before it was asked (`prefetched`).
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import load
from numpy.typing import NDArray

from engine.backends.base import Sequence, rewind
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.cache.report import CacheSettings
from engine.configuration import Configuration, FlashAttention, KVTypeName, PredictorName
from engine.configuration import SpeculationSettings as Speculation
from engine.events import Finished, PromptReady, TiersChanged, TokensCommitted
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message

Rows = NDArray[np.float32]
KINDS: tuple[tuple[KVTypeName, FlashAttention], ...] = (
    ("f16", "on"), ("f16", "off"), ("q8_0", "on"), ("q4_0", "on"),
)  # fmt: skip
N_SLOTS = 4
N_BATCH = 512
N_NEIGHBOUR = 200
N_REPEATS = 9
OFF = Speculation(predictor=PredictorName.OFF)
PLACES = ("nothing", "hot", "warm", "cold", "prefetched")
SENTENCE = "The keeper wrote down every passing ship, its flag, its course and the weather. "
TOKENS_OF_SENTENCE = 17
SEASONS = ("Winter", "Spring", "Summer", "Autumn")
"""First words of the questions, so that a tier holds nothing of the next one."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a context is opened with."""

    model: Path
    kind: KVTypeName
    flash_attention: FlashAttention
    n_tokens: int
    n_threads: int
    n_sequences: int = 1

    def open(self) -> LlamaCppBackend:
        n_cells = -(-(self.n_tokens + 512) // 256) * 256
        settings = Configuration(
            self.model.resolve(), n_ctx=n_cells * self.n_sequences, n_gpu_layers=0,
            n_batch=N_BATCH, n_ubatch=N_BATCH, type_k=self.kind, type_v=self.kind,
            flash_attention=self.flash_attention, n_threads=self.n_threads,
            n_slots=self.n_sequences,
        )  # fmt: skip
        return LlamaCppBackend(settings, NativeLog())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    for name, number in {"tokens": 2000, "rows": 64, "threads": 2, "pairs": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    tables = {"equality": print_equality, "times": print_times, "resume": print_resume}
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables))
    options = parser.parse_args()
    for model in options.models:
        print(f"\n{model.name}, {options.tokens} tokens, {options.threads} threads")
        for name in options.only:
            tables[name](model, options)


def line(n: int, seed: int = 0) -> list[int]:
    """Tokens that any model knows, never the same twice in a row."""
    return [int(token) for token in np.random.default_rng(seed).integers(100, 20_000, n)]


def read(sequence: Sequence, tokens: list[int]) -> None:
    """Hold these tokens, of which the sequence holds the first."""
    for start in range(len(sequence.tokens), len(tokens), N_BATCH):
        sequence.prefill(tokens[start : min(start + N_BATCH, len(tokens))])


def rows(sequence: Sequence, n: int) -> Rows:
    """The logits of n more tokens, decoded one by one."""
    return np.stack([sequence.decode(token).logits[0].copy() for token in line(n, 1)])


def print_equality(model: Path, options: argparse.Namespace) -> None:
    print(f"\nequality of {options.rows} rows")
    print("  K/V   flash  cells     " + "  ".join(f"{name:>8}" for name in COLUMNS))
    for kind, flash_attention in KINDS:
        for n_sequences in (1, N_SLOTS):
            case = Case(model, kind, flash_attention, options.tokens, options.threads, n_sequences)
            found = dict(compare(case, options.rows))
            cells = "alone" if n_sequences == 1 else f"1 of {n_sequences}"
            cells_text = "  ".join(f"{found.get(name, '-'):>8}" for name in COLUMNS)
            print(f"  {kind:5} {flash_attention:5}  {cells:8}  {cells_text}", flush=True)


COLUMNS = ("whole", "segments", "branch", "restart")


def compare(case: Case, n_rows: int) -> Iterator[tuple[str, str]]:
    """Each way to restore, and whether its rows were the same."""
    backend = case.open()
    neighbours = [backend.open() for _ in range(case.n_sequences - 1)]
    for neighbour in neighbours[:1]:
        read(neighbour, line(N_NEIGHBOUR, 2))
    sequence = backend.open()
    tokens = line(case.n_tokens)
    read(sequence, tokens)
    state = bytes(sequence.save())
    expected = rows(sequence, n_rows)

    def again(tokens: list[int], states: list[bytes], expected: Rows) -> str:
        sequence.load(tokens, states)
        return verdict(expected, rows(sequence, n_rows))

    yield "whole", again(tokens, [state], expected)
    n_shared = 2 * case.n_tokens // 3 if backend.can_slice else case.n_tokens
    other = tokens[:n_shared] + line(40, 3)
    sequence.load(tokens, [state])
    rewind(sequence, other)
    read(sequence, other)
    branch = bytes(sequence.save())
    branched = rows(sequence, n_rows)
    if backend.can_slice:
        yield "segments", again(tokens, segments(sequence, tokens, state, 4), expected)
        sequence.load(tokens, [state])
        rewind(sequence, tokens[:n_shared])
        front = bytes(sequence.save())
        sequence.load(other, [branch])
        yield "branch", again(other, [front, bytes(sequence.save(n_shared))], branched)
    else:
        yield "branch", again(other, [branch], branched)
    for one in (*neighbours, sequence):
        one.close()
    backend.close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        fresh = pool.apply(restored_rows, (case, state, n_rows))
    yield "restart", verdict(expected, fresh)


def restored_rows(case: Case, state: bytes, n_rows: int) -> Rows:
    """The rows after a state, in a process that has never decoded its tokens."""
    backend = case.open()
    backend.warm_up()
    sequence = backend.open()
    sequence.load(line(case.n_tokens), [state])
    found = rows(sequence, n_rows)
    backend.close()
    return found


def segments(sequence: Sequence, tokens: list[int], state: bytes, n: int) -> list[bytes]:
    """States of n consecutive ranges of a saved sequence, of about the same length."""
    found = []
    for number in range(n):
        sequence.load(tokens, [state])
        rewind(sequence, tokens[: len(tokens) * (number + 1) // n])
        found.append(bytes(sequence.save(len(tokens) * number // n)))
    return found


def verdict(expected: Rows, found: Rows) -> str:
    """`equal`, or the first row that differs."""
    differ = [n for n in range(len(expected)) if not np.array_equal(expected[n], found[n])]
    return "equal" if not differ else f"row {differ[0]}"


def print_times(model: Path, options: argparse.Namespace) -> None:
    print("\n  tokens  K/V   flash       bytes    get ms  end ms  parts ms  set ms")
    for kind, flash_attention in KINDS:
        case = Case(model, kind, flash_attention, options.tokens, options.threads)
        backend = case.open()
        sequence = backend.open()
        for n_tokens in sorted({min(600, case.n_tokens), case.n_tokens}):
            read(sequence, line(case.n_tokens)[:n_tokens])
            timed = times(backend, sequence)
            print(f"  {n_tokens:6}  {kind:5} {flash_attention:5}  {timed}", flush=True)
        backend.close()


def times(backend: LlamaCppBackend, sequence: Sequence) -> str:
    tokens = list(sequence.tokens)
    state = bytes(sequence.save())
    get_s = median(sequence.save)
    set_s = median(lambda: sequence.load(tokens, [state]))
    size = f"{len(state):10,}"
    if not backend.can_slice:
        return f"{size}  {1e3 * get_s:8.1f}       -         -  {1e3 * set_s:6.1f}"
    parts = segments(sequence, tokens, state, 8)
    sequence.load(tokens, [state])
    end_s = median(lambda: sequence.save(len(tokens) - 100))
    parts_s = median(lambda: sequence.load(tokens, parts))
    return (
        f"{size}  {1e3 * get_s:8.1f}  {1e3 * end_s:6.1f}  {1e3 * parts_s:8.1f}  {1e3 * set_s:6.1f}"
    )


def median(work: Callable[[], object]) -> float:
    """The median of the seconds that something takes."""
    return statistics.median(timeit.repeat(work, number=1, repeat=N_REPEATS))


Timed = tuple[float, PromptReady, Finished]
"""Time to the first token, where the prompt's tokens came from, and the reply."""


def print_resume(model: Path, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kvchat-resume-") as folder:
        bench = Bench(model, options, Path(folder))
        pairs = [bench.pair(number) for number in range(options.pairs)]
        bench.engine.client.close()
    print("\n              first token  of prefill   restoring    hot  warm  cold  new tokens")
    for place in PLACES:
        runs = [pair[place] for pair in pairs]
        first_ms = 1e3 * statistics.median(first_s for first_s, _, _ in runs)
        restore_ms = 1e3 * statistics.median(reuse.restore_s for _, reuse, _ in runs)
        gain = statistics.median(pair["nothing"][0] / pair[place][0] for pair in pairs)
        reuse = runs[-1][1]
        print(
            f"  {place:12}{first_ms:9.1f} ms     1/{gain:<5.1f}{restore_ms:9.1f} ms  "
            f"{reuse.n_hot:5} {reuse.n_warm:5} {reuse.n_cold:5} {reuse.n_read:11}"
        )


class Bench:
    """An engine with one slot, whose cold tier lies in a folder of its own."""

    def __init__(self, model: Path, options: argparse.Namespace, folder: Path) -> None:
        self._model, self._options, self._folder = model, options, folder
        self.engine = self._start()

    def _start(self) -> BlockingClient:
        engine = load(
            self._model, cache=CacheSettings(folder=self._folder / "states"),
            n_ctx=max(4096, 2 * self._options.tokens), n_threads=self._options.threads,
            flash_attention=self._options.flash_attention, speculation=OFF,
        )  # fmt: skip
        for event in engine.events(60.0):
            if isinstance(event, TiersChanged) and len(event.report.tiers) > 1:
                break
        return engine

    def pair(self, number: int) -> dict[str, Timed]:
        """The replies of one new chat from each place."""
        chat = f"chat:{number}"
        n_sentences = self._options.tokens // TOKENS_OF_SENTENCE
        question = Message("user", f"Log number {number}. " + SENTENCE * n_sentences)
        timed = {"nothing": self._ask(chat, question)}
        first = timed["nothing"][2]
        answer = Message("assistant", first.text, first.token_ids, first.vocabulary_id)
        turns = [
            (question, answer, Message("user", f"{season} came: what now?")) for season in SEASONS
        ]
        timed["hot"] = self._ask(chat, *turns[0])
        self._ask(f"other:{number}", Message("user", f"Number {number}: name three colours."))
        timed["warm"] = self._ask(chat, *turns[1])
        self._restart()
        timed["cold"] = self._ask(chat, *turns[2])
        self._restart()
        self.engine.client.prefetch(turns[3][:2])
        time.sleep(1.0)
        timed["prefetched"] = self._ask(chat, *turns[3])
        return timed

    def _ask(self, owner: str, *messages: Message) -> Timed:
        started, first_token_s, reuse = time.perf_counter(), None, None
        request = GenerationRequest(messages=messages, max_tokens=16, owner=owner)
        for event in self.engine.reply(request):
            match event:
                case TokensCommitted() if first_token_s is None:
                    first_token_s = time.perf_counter() - started
                case PromptReady():
                    reuse = event
                case Finished() if first_token_s is not None and reuse is not None:
                    return first_token_s, reuse, event
        sys.exit("a reply ended before its first token: ask something else")

    def _restart(self) -> None:
        """End the engine, drop its files from the page cache, and start it again."""
        self.engine.client.close()
        os.sync()
        for path in filter(Path.is_file, self._folder.rglob("*")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.engine = self._start()


if __name__ == "__main__":
    main()
