"""What a round costs outside llama.cpp: loop, predictor, rule, sampler, verification, events.

    python benchmarks/overhead.py [MODEL] [--vocabulary 49152 152064] [--tokens 256]

A round's time less the time inside `llama_decode` and `llama_get_logits`, by the rows of its batch,
with events pickled to a pipe that leads nowhere. Without MODEL a stand-in plays a model of any
vocabulary: it repeats the prompt out of rows of random logits, whose making does not count.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import llama_cpp
import numpy as np

from engine.backends.base import Forward
from engine.configuration import Configuration, ControllerName, PredictorName, SamplingSettings
from engine.configuration import SpeculationSettings as Speculation
from engine.events import CacheChanged, RoundFinished
from engine.experiment.prompts import read_set
from engine.generation.session import Session
from engine.load import load_session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import FakeBackend, FakeSequence

GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05)
N_RANDOM_ROWS, PERIOD = 64, 250
STEP_S, EXTRA_ROW = 2e-3, 0.1
"""What a step of the stand-in takes, and what each further row adds: drafting pays."""
CLOCK = np.zeros(2)
"""Milliseconds inside the model so far, by the clock and of this thread's processor."""


def now_ms() -> Any:
    return 1e3 * np.array((perf_counter(), thread_time()))


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its time added to the model's."""

    def call(*arguments: Any, **named: Any) -> Any:
        before = now_ms()
        try:
            return function(*arguments, **named)
        finally:
            CLOCK.__iadd__(now_ms() - before)

    return call


class Repeating(FakeBackend):
    """Repeats what the sequence had `PERIOD` tokens ago, out of random logits of any vocabulary."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__(n_ctx=4096, n_batch=512)
        self.vocabulary.n_tokens = n_vocab
        rows = np.random.default_rng(7).normal(scale=2.0, size=(N_RANDOM_ROWS, n_vocab))
        self._random = rows.astype(np.float32)

    def open(self) -> FakeSequence:
        sequence = super().open()
        inner = sequence.verify

        def verify(tokens: Sequence[int], **named: Any) -> Forward:
            sleep(STEP_S * (1 + EXTRA_ROW * (len(tokens) - 1)))
            return inner(tokens, **named)

        sequence.verify = counted(verify)  # type: ignore[method-assign]  # it is timed
        return sequence

    def logits_after(self, tokens: Sequence[int]) -> Any:
        row = self._random[len(tokens) % N_RANDOM_ROWS].copy()
        row[tokens[-PERIOD]] = 25.0
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[49_152, 152_064])
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    titles = "vocab predictor  rule   drawn rows rounds  median     p95     cpu ms"
    print(f"{'model':15} {titles:>75}")
    for n_vocab in [] if options.model else options.vocabulary:
        letters = np.random.default_rng(3).integers(97, 123, size=PERIOD)
        session = Session(Repeating(n_vocab), ChatTemplate(None), Speculation())
        request = GenerationRequest((), raw_prompt=4 * "".join(map(chr, letters)))
        measure(f"stand-in {n_vocab:14d}", session, request, options.tokens)
    if options.model:
        llama_cpp.llama_decode = counted(llama_cpp.llama_decode)
        llama_cpp.llama_get_logits = counted(llama_cpp.llama_get_logits)
        loaded = load_session(Configuration(options.model.resolve(), n_ctx=4096, n_threads=2))
        request = GenerationRequest((Message("user", read_set("grounded")[0].text),))
        title = f"{loaded.loaded.model_name[:15]:15} {loaded.loaded.n_vocab:7d}"
        measure(title, loaded.session, request, options.tokens)


def measure(title: str, session: Session, asked: GenerationRequest, n_tokens: int) -> None:
    """Print the rounds of every predictor, greedy and drawn; a first reply of each is dropped."""
    for settings in ways(session):
        for name, sampling in (("greedy", GREEDY), ("0.7", WARM)):
            request = replace(asked, sampling=sampling, max_tokens=n_tokens, seed=1)
            session.set_speculation(settings)
            answer(session, request)
            for n_rows, times in sorted(answer(session, request).items()):
                clock, cpu = np.array(times).T
                print(
                    f"{title} {settings.predictor:10} {settings.controller:6} {name:6} {n_rows:3d} "
                    f"{len(times):6d} {np.median(clock):7.3f} {np.percentile(clock, 95):7.3f} "
                    f"{np.median(cpu):7.3f}",
                    flush=True,
                )


def ways(session: Session) -> Iterator[Speculation]:
    yield Speculation(predictor=PredictorName.OFF)
    for name in map(PredictorName, session.predictors):
        if name is not PredictorName.OFF:
            yield Speculation(name, controller=ControllerName.FIXED, n_draft=3)
            yield Speculation(name, controller=ControllerName.AUTO)


def answer(session: Session, request: GenerationRequest) -> dict[int, list[Any]]:
    """The own times of the rounds of one reply, in ms, by the rows of the round's batch."""
    own_ms: defaultdict[int, list[Any]] = defaultdict(list)
    with Connection(os.open(os.devnull, os.O_WRONLY), readable=False) as nowhere:
        n_rows, start = 0, now_ms() - CLOCK
        for event in session.generate(request, Cancellation()):
            nowhere.send(event)
            if isinstance(event, RoundFinished):
                n_rows = 1 + event.n_verified
            if isinstance(event, CacheChanged):
                if n_rows:
                    own_ms[n_rows].append(now_ms() - CLOCK - start)
                n_rows, start = 0, now_ms() - CLOCK
    return own_ms


if __name__ == "__main__":
    main()
