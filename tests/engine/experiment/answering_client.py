"""An engine client whose replies come from a function, at speeds of its choice."""

from collections.abc import Callable, Sequence
from pathlib import Path

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import (
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    Loaded,
    RoundFinished,
    SourceCounts,
)
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest
from tests.support import fakes_client

CONFIGURATION = Configuration(model_path=Path("Tiny.gguf"), n_ctx=2048)
Answer = Callable[[GenerationRequest, SpeculationSettings], Sequence[Event]]


def round_finished(n_verified: int, verify_s: float) -> RoundFinished:
    return RoundFinished(
        n_drafted=n_verified, n_verified=n_verified, n_examined=n_verified, n_accepted=0,
        n_emitted=1, source="lookup" if n_verified else None, length=n_verified, next_length=0,
        reason="", draft_s=0.0, verify_s=verify_s, elapsed_s=verify_s, plain_step_s=None,
    )  # fmt: skip


def finished(
    tokens: Sequence[int], tps: float | None, *, seed: int | None, n_verified: int = 0
) -> Finished:
    stats = GenerationStats(
        n_prompt=50, n_rounds=max(1, len(tokens) // 2), n_verified=n_verified,
        n_accepted=n_verified // 2, n_emitted=len(tokens), decode_tps=tps,
        decode_s=len(tokens) / tps if tps else 0.0,
        by_source={"lookup": SourceCounts(n_verified=n_verified, n_accepted=n_verified // 2)}
        if n_verified else {},
    )  # fmt: skip
    text = "".join(chr(97 + token % 26) for token in tokens)
    return Finished(FinishReason.LENGTH, text, tuple(tokens), "tiny", seed or 0, stats)


def steady(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
    """Plain decoding at 100 tokens a second, everything else half as fast again; one text."""
    is_plain = settings.predictor is PredictorName.OFF
    rounds = [round_finished(0 if is_plain else 2, 0.01 if is_plain else 0.015)] * 3
    done = finished(
        range(request.max_tokens or 40),
        100.0 if is_plain else 150.0,
        seed=request.seed,
        n_verified=0 if is_plain else 20,
    )
    return [*rounds, done]


class AnsweringClient:
    """Implements `EngineClient`; keeps what it was asked."""

    is_busy = False
    is_alive = True

    def __init__(self, answer: Answer = steady) -> None:
        self.answer = answer
        self.asked: list[tuple[GenerationRequest, SpeculationSettings]] = []
        self.n_loads = 0
        self._settings = SpeculationSettings()
        self._events: list[Event] = []

    def load(self, configuration: Configuration) -> None:
        self.n_loads += 1
        self._events = [self.loaded(configuration)]

    def loaded(self, configuration: Configuration) -> Loaded:
        return fakes_client.loaded(configuration)

    def generate(self, request: GenerationRequest) -> None:
        self.asked.append((request, self._settings))
        self._events += self.answer(request, self._settings)

    def stop(self) -> None: ...

    def set_speculation(self, settings: SpeculationSettings) -> None:
        self._settings = settings

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events, self._events = self._events, []
        assert events, "waited for an engine without events"
        return events

    def process_memory_bytes(self) -> int | None:
        return None

    def close(self) -> None: ...


def loaded(client: AnsweringClient) -> BlockingClient:
    """The client with a model."""
    engine = BlockingClient(client)
    engine.load(CONFIGURATION)
    return engine
