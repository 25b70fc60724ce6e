"""What a draft model costs its target by being there, and by decoding at the same time.

    python benchmarks/background_drafting.py TARGET DRAFT [--steps 40] [--repeats 5]

Drafting for the next round while the target verifies this one pays only where both at once take
less than one behind the other. Prints the plain step of the target alone, with the draft loaded,
and with the draft decoding in a second thread (llama.cpp runs without Python's lock), the draft's
own step in both cases, and the time of a target step and a draft step together, both at once over
one behind the other: below 1 something is gained.
"""

import argparse
import threading
from pathlib import Path
from statistics import median

from engine.backends.base import Sequence
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.clock import Stopwatch
from engine.configuration import Configuration, DraftConfiguration

N_CTX = 1024
WARM_STEPS = 4


class Stepper:
    """Decodes one token after the other and cuts back before the context is full."""

    def __init__(self, backend: LlamaCppBackend) -> None:
        self._sequence: Sequence = backend.open()
        self._limit = N_CTX // 2

    def step_s(self) -> float:
        """Decode a token; gives the seconds that it took."""
        if len(self._sequence.tokens) >= self._limit:
            self._sequence.crop(0)
        watch = Stopwatch()
        self._sequence.decode(len(self._sequence.tokens) % 100)
        return watch.split()

    def median_s(self, n_steps: int) -> float:
        """The median of some steps behind a few that warm up."""
        for _ in range(WARM_STEPS):
            self.step_s()
        return median(self.step_s() for _ in range(n_steps))


class InBackground:
    """Lets a stepper decode in a thread for as long as the context lasts."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._steps: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "InBackground":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def median_s(self) -> float:
        """The median of the steps so far."""
        return median(self._steps)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._steps.append(self._stepper.step_s())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args()
    configuration = Configuration(
        model_path=asked.target.resolve(),
        n_ctx=N_CTX,
        n_threads=asked.threads,
        draft=DraftConfiguration(asked.draft.resolve(), N_CTX),
    )
    log = NativeLog()
    target = LlamaCppBackend(configuration, log)
    stepper = Stepper(target)
    alone = median(stepper.median_s(asked.steps) for _ in range(asked.repeats))
    own = configuration.of_draft("kvchat")
    assert own is not None
    draft = LlamaCppBackend(own, log, "draft")
    drafting = Stepper(draft)
    loaded, own, beside, background = [], [], [], []
    for _ in range(asked.repeats):
        loaded.append(stepper.median_s(asked.steps))
        own.append(drafting.median_s(asked.steps))
        with InBackground(drafting) as running:
            beside.append(stepper.median_s(asked.steps))
        background.append(running.median_s)
    report(alone, median(loaded), median(beside), median(own), median(background))
    draft.close()
    target.close()


def report(alone: float, loaded: float, beside: float, own: float, background: float) -> None:
    """Print the steps in milliseconds and what they mean."""
    print(f"target, alone                      {alone * 1e3:8.2f} ms")
    print(f"target, draft loaded and idle      {loaded * 1e3:8.2f} ms  x{loaded / alone:.2f}")
    print(f"target, draft decoding beside it   {beside * 1e3:8.2f} ms  x{beside / loaded:.2f}")
    print(f"draft, alone                       {own * 1e3:8.2f} ms")
    print(f"draft, beside the target           {background * 1e3:8.2f} ms  x{background / own:.2f}")
    at_once = 1.0 / (loaded / beside + own / background)
    print(
        f"work of both at once over one behind the other: {at_once:.2f} "
        f"({'gained' if at_once < 1.0 else 'lost'}: {abs(1.0 - at_once):.0%})"
    )


if __name__ == "__main__":
    main()
