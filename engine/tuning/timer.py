"""Times of one engine or another: the promise, and the engines of this machine that keep it.

A run is a reply as the chat makes it, by an engine in a process of its own: what is timed is what a
user gets. Two engines are loaded side by side where memory allows, so that runs alternate within
seconds.
"""

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import EngineError, WorkerError
from engine.events import Finished, WorkerStopped
from engine.process.blocking_client import (
    BlockingClient,
    EngineStoppedError,
    EngineTimeoutError,
)
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest
from engine.tuning.trials import Variant, Workload

TEXT = (
    "the harbour town had three bakeries and each of them claimed to be oldest first stood by "
    "church second market third on quay where fishermen bought their bread at four in morning one "
    "winter mayor decided settle matter once for all asked keeper archive look proof he found what "
    "nobody knew until then an old letter with seal of king who had come from far away"
)
"""Its words are what prompts are made of, drawn with replacement: no two begin alike."""
WARM_UP_WORDS = 48
LEAST_WRITTEN = 4
"""Tokens under which a reply is too short to time: the model ended it."""
N_TRIES = 4
"""Texts that are tried until a reply is long enough."""


class VariantFailedError(EngineError):
    """An engine could not be loaded, died, or gave no reply."""

    title = "A configuration failed"

    def __init__(self, variant: Variant, reason: str) -> None:
        super().__init__(reason)
        self.variant = variant


class OutOfTimeError(EngineError):
    """What was measured did not end in the time that is left."""

    title = "The time is over"


class EngineTimer(Protocol):
    """Takes times; a fake one knows them."""

    def seconds(self, variant: Variant, workload: Workload, *, within_s: float) -> float:
        """Seconds a token of one run.

        Args:
            variant: The engine; it is loaded where it is not.
            workload: What it does; a prompt is another one with every run.
            within_s: How long loading and running may take.

        Raises:
            VariantFailedError: this engine cannot do it.
            OutOfTimeError: it took longer.
        """
        ...


class _Engine:
    """One engine that has loaded a model, and what it has read."""

    def __init__(self, variant: Variant, client: EngineClient, within_s: float) -> None:
        off = SpeculationSettings(predictor=PredictorName.OFF)
        asked = replace(variant.configuration, speculation=off, n_slots=1, kv_unified=False)
        self._client = BlockingClient(client, limit_s=within_s, on_restart=_give_up)
        try:
            loaded = self._client.load(asked).configuration
            if loaded.use_extra_buffers != asked.use_extra_buffers:
                raise WorkerError("llama.cpp crashes with repacked weights here: `kvchat doctor`")
            self._n_texts = 0
            self._tokens_a_word = 1.0
            n_tokens = self._reply(self._text(WARM_UP_WORDS), LEAST_WRITTEN).stats.n_prompt
            self._tokens_a_word = n_tokens / WARM_UP_WORDS
        except BaseException:
            client.close()
            raise

    def seconds(self, workload: Workload, within_s: float) -> float:
        self._client.limit_s = within_s
        if workload.is_read:
            stats = self._reply(self._text(workload.n_tokens), 1).stats
            return stats.prefill_s / max(stats.n_prompt - 1 - stats.n_reused, 1)
        for number in range(N_TRIES):
            text = self._text(workload.n_held, seed=-1 - number)
            stats = self._reply(text, workload.n_tokens).stats
            if stats.n_emitted >= LEAST_WRITTEN and stats.decode_s > 0:
                return stats.decode_s / stats.n_emitted
        raise WorkerError(f"the model ends its replies before {LEAST_WRITTEN} tokens")

    def close(self) -> None:
        self._client.client.close()

    def _text(self, n_tokens: int, seed: int | None = None) -> str:
        """A text of about as many tokens; a new one where no seed is given."""
        self._n_texts += seed is None
        rng = random.Random(self._n_texts if seed is None else seed)
        return " ".join(rng.choices(TEXT.split(), k=max(round(n_tokens / self._tokens_a_word), 1)))

    def _reply(self, text: str, n_tokens: int) -> Finished:
        request = GenerationRequest(raw_prompt=text, max_tokens=n_tokens)
        (finished,) = deque(self._client.reply(request), maxlen=1)
        assert isinstance(finished, Finished)
        return finished


class Engines:
    """The engines of this machine; a context, which ends them.

    Args:
        new_client: Makes an engine's client that keeps nothing of what it learns.
        n_loaded: How many may be loaded at once: one where two do not fit.
    """

    def __init__(self, new_client: Callable[[], EngineClient], n_loaded: int) -> None:
        self._new_client = new_client
        self._n_loaded = n_loaded
        self._loaded: dict[Variant, _Engine] = {}

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *_: object) -> None:
        while self._loaded:
            self._close(next(iter(self._loaded)))

    def seconds(self, variant: Variant, workload: Workload, *, within_s: float) -> float:
        with self._named_errors(variant):
            return self._engine(variant, within_s).seconds(workload, within_s)

    def _engine(self, variant: Variant, within_s: float) -> _Engine:
        """The engine, loaded; the ones used longest ago go where there is no room."""
        engine = self._loaded.pop(variant, None)
        if engine is None:
            while len(self._loaded) >= self._n_loaded:
                self._close(next(iter(self._loaded)))
            engine = _Engine(variant, self._new_client(), within_s)
        self._loaded[variant] = engine
        return engine

    @contextlib.contextmanager
    def _named_errors(self, variant: Variant) -> Iterator[None]:
        """Errors of an engine as those of its variant; what failed is not used again."""
        try:
            yield
        except EngineTimeoutError as error:
            self._close(variant)
            raise OutOfTimeError(str(error)) from error
        except EngineError as error:
            self._close(variant)
            raise VariantFailedError(variant, str(error)) from error

    def _close(self, variant: Variant) -> None:
        engine = self._loaded.pop(variant, None)
        if engine is not None:
            engine.close()


def _give_up(stopped: WorkerStopped) -> None:
    raise EngineStoppedError(stopped)  # what runs after a fallback is not what was asked for
