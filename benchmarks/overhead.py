"""What a round costs outside llama.cpp: loop, predictor, rule, sampler, verification, events.

    python benchmarks/overhead.py [MODEL] [--draft GGUF] [--vocabulary 49152 152064]
        [--tokens 256] [--prompt-tokens 1000] [--json FILE]

Replies run in the worker's own loop, which pickles its events and writes them to a pipe that leads
nowhere. A round's time less the time inside `llama_decode` (and `llama_get_logits`, which waits for
a GPU) is the worker's own; the table has its median and its 95th percentile by the rows of a batch,
and the median of the processor's time, which other programs on the machine disturb less.
Without MODEL, or beside it, a stand-in plays a model of any vocabulary: it goes on with what the
prompt repeats, from rows of random logits, and what it takes to make them does not count.
"""

import argparse
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import llama_cpp
import numpy as np

from app.bench.prompt_sets import read_set
from engine.backends.base import Forward
from engine.configuration import (
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import CacheChanged, Event, RoundFinished
from engine.generation.session import Session
from engine.load import load_session
from engine.model.chat_template import ChatTemplate
from engine.process.worker import Worker
from engine.requests import Cancellation, GenerationRequest, Message
from engine.sampling import Sampler

GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05)
N_RANDOM_ROWS = 64
N_SAMPLED = 300
STEP_S, EXTRA_ROW = 2e-3, 0.1
"""What a step of the stand-in takes, and what each further row adds: drafting pays."""


CLOCK = [0.0, 0.0]
"""Seconds that were spent inside the model so far, by the clock and of this thread's processor."""


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its time added to the model's."""

    def call(*arguments: Any, **named: Any) -> Any:
        start, cpu_start = perf_counter(), thread_time()
        try:
            return function(*arguments, **named)
        finally:
            CLOCK[0] += perf_counter() - start
            CLOCK[1] += thread_time() - cpu_start

    return call


def own_s() -> tuple[float, float]:
    """The time outside the model, by the clock and of this thread's processor."""
    return perf_counter() - CLOCK[0], thread_time() - CLOCK[1]


class WatchedSession:
    """A session that notes the own time of each round, what its reader does with it included."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.own_ms: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        """By the rows of the round's batch: by the clock, and of the processor."""

    def generate(self, request: GenerationRequest, cancellation: Cancellation) -> Iterator[Event]:
        n_rows = 0
        start = own_s()
        for event in self._session.generate(request, cancellation):
            yield event
            if isinstance(event, RoundFinished):
                n_rows = 1 + event.n_verified
            if isinstance(event, CacheChanged):
                end = own_s()
                if n_rows:
                    spent = 1e3 * (end[0] - start[0]), 1e3 * (end[1] - start[1])
                    self.own_ms[n_rows].append(spent)
                n_rows = 0
                start = own_s()


@dataclass(frozen=True, slots=True)
class Measured:
    """Own times of the rounds of one kind, in milliseconds."""

    model: str
    n_vocab: int
    predictor: str
    controller: str
    drawing: str
    n_rows: int
    n_rounds: int
    median_ms: float
    p95_ms: float
    cpu_ms: float


class NumberVocabulary:
    """Tokens are numbers; a text is numbers with spaces between."""

    kind = "NUMBERS"
    bos = eos = None
    adds_bos = adds_eos = False

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.identifier = f"numbers-{n_tokens}"

    def is_end(self, token: int) -> bool:
        return token == self.n_tokens - 1

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del add_special, parse_special  # there are none
        return [int(word) for word in text.split()]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        del special
        return b"%d " % token

    def text(self, token: int) -> bytes:
        return self.piece(token)


class RepeatingBackend:
    """Says again and again what the line said `period` tokens ago, out of random logits."""

    kv_bytes = 0
    n_batch = 2048
    n_rows = 17
    n_sequences = 1
    can_crop = True
    can_slice = False
    state_format = "none"

    def __init__(self, n_vocab: int, period: int, n_ctx: int) -> None:
        self.vocabulary = NumberVocabulary(n_vocab)
        self.n_ctx = n_ctx
        self.period = period
        random = np.random.default_rng(7)
        self.random = random.normal(scale=2.0, size=(N_RANDOM_ROWS, n_vocab)).astype(np.float32)

    def open(self) -> "RepeatingSequence":
        return RepeatingSequence(self)

    def abort(self) -> None:
        pass

    def clear_abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class RepeatingSequence:
    def __init__(self, backend: RepeatingBackend) -> None:
        self._backend = backend
        self.tokens: list[int] = []
        self.verify = counted(self._verify)

    def prefill(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def can_crop(self, length: int) -> bool:
        return length <= len(self.tokens)

    def crop(self, length: int) -> None:
        del self.tokens[length:]

    def close(self) -> None:
        self.tokens = []

    def _verify(self, tokens: Sequence[int], *, unread: Sequence[int] = ()) -> Forward:
        self.tokens.extend(unread)
        sleep(STEP_S * (1 + EXTRA_ROW * (len(tokens) - 1)))
        first = len(self.tokens) % (N_RANDOM_ROWS - len(tokens))
        rows = self._backend.random[first : first + len(tokens)].copy()
        for row, token in zip(rows, tokens, strict=True):
            self.tokens.append(token)
            row[self.tokens[-self._backend.period]] = 25.0
        return Forward(rows)


def main() -> None:
    options = parsed()
    measured: list[Measured] = []
    print(
        f"{'model':22} {'vocab':>7} {'predictor':10} {'rule':6} {'drawn':6} {'rows':>4} "
        f"{'rounds':>6} {'median':>7} {'p95':>7} {'cpu':>7} ms"
    )
    for n_vocab in options.vocabulary:
        period = options.prompt_tokens // 4
        stand_in = RepeatingBackend(n_vocab, period, 2 * options.prompt_tokens + options.tokens)
        session = Session(stand_in, ChatTemplate(None), SpeculationSettings())
        block = np.random.default_rng(3).integers(n_vocab - 1, size=period).tolist()
        text = " ".join(map(str, 4 * block))
        measured += measure("stand-in", n_vocab, session, text, options)
    if options.model is not None:
        measured += measure_model(options)
    for n_vocab in options.vocabulary:
        print(f"one row at top-k 40, {n_vocab} tokens: {row_ms(n_vocab):.3f} ms in the median")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in measured], indent=1))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[49_152, 152_064])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="of the stand-in")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure_model(options: argparse.Namespace) -> list[Measured]:
    draft = None
    if options.draft is not None:
        draft = DraftConfiguration(model_path=options.draft.resolve(), n_ctx=4096)
    configuration = Configuration(
        model_path=options.model.resolve(), n_ctx=4096, n_threads=options.threads, draft=draft
    )
    loaded = load_session(configuration)
    llama_cpp.llama_decode = counted(llama_cpp.llama_decode)
    llama_cpp.llama_get_logits = counted(llama_cpp.llama_get_logits)
    prompt = read_set("grounded")[0].text
    told = loaded.loaded
    return measure(told.model_name, told.n_vocab, loaded.session, prompt, options)


def measure(
    model: str, n_vocab: int, session: Session, text: str, options: argparse.Namespace
) -> list[Measured]:
    """Run every predictor under two rules, greedy and drawn; a first reply of each is dropped."""
    found = []
    for settings in ways(session):
        for name, sampling in (("greedy", GREEDY), ("0.7", WARM)):
            request = GenerationRequest(
                messages=(Message("user", text),),
                raw_prompt=text if model == "stand-in" else None,
                sampling=sampling,
                max_tokens=options.tokens,
                seed=1,
            )
            session.set_speculation(settings)
            answer(session, request)
            for n_rows, times in sorted(answer(session, request).items()):
                found.append(
                    Measured(
                        model,
                        n_vocab,
                        settings.predictor.value,
                        settings.controller.value,
                        name,
                        n_rows,
                        len(times),
                        statistics.median(clock for clock, _ in times),
                        float(np.percentile([clock for clock, _ in times], 95)),
                        statistics.median(cpu for _, cpu in times),
                    )
                )
                print(row(found[-1]), flush=True)
    return found


def ways(session: Session) -> Iterator[SpeculationSettings]:
    yield SpeculationSettings(predictor=PredictorName.OFF)
    for predictor in session.predictors:
        settings = SpeculationSettings(predictor=PredictorName(predictor))
        if settings.predictor is not PredictorName.OFF:
            yield replace(settings, controller=ControllerName.FIXED, n_draft=3)
            yield replace(settings, controller=ControllerName.AUTO)


def answer(session: Session, request: GenerationRequest) -> dict[int, list[tuple[float, float]]]:
    """Make one reply in the worker's loop and give the own times of its rounds."""
    watched = WatchedSession(session)
    with Connection(os.open(os.devnull, os.O_WRONLY), readable=False) as nowhere:
        worker = Worker(nowhere)
        worker._session = watched  # the loop of a worker process, without the process
        worker._generate(request, Cancellation())
    return watched.own_ms


def row(measured: Measured) -> str:
    return (
        f"{measured.model[:22]:22} {measured.n_vocab:7d} {measured.predictor:10} "
        f"{measured.controller:6} {measured.drawing:6} {measured.n_rows:4d} {measured.n_rounds:6d} "
        f"{measured.median_ms:7.3f} {measured.p95_ms:7.3f} {measured.cpu_ms:7.3f}"
    )


def row_ms(n_vocab: int) -> float:
    """The median time of one row of random logits through the sampler at top-k 40."""
    logits = np.random.default_rng(5).normal(scale=2.0, size=(N_RANDOM_ROWS, n_vocab))
    rows = logits.astype(np.float32)
    sampler = Sampler(WARM, seed=1)
    times = []
    for number in range(N_SAMPLED):
        start = perf_counter()
        sampler.sample(rows[number % N_RANDOM_ROWS], (), number)
        times.append(1e3 * (perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
