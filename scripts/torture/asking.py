"""One engine at a folder of snapshots, asked and waited for."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    Loaded,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message
from torture.life import FAULTS
from torture.oracle import Asked
from torture.plan import ENVIRONMENT, Plan
from torture.tally import Tally

PATIENCE_S = 60.0
MAX_TOKENS = 10
WORKER = (sys.executable, "-P", "-m", "torture.worker")


@dataclass(slots=True)
class Engine:
    """A worker whose end, failures and answers are looked at."""

    plan: Plan
    name: str
    tally: Tally
    notes: list[str] = field(default_factory=list)
    """What the cache said was wrong."""
    is_open: bool = False
    _client: WorkerClient | None = None

    def start(self) -> None:
        """Load the plan's first model, and wait until the tiers are open or refused."""
        os.environ.update(
            {name: value for name, value in self.plan.environment().items()
             if name == ENVIRONMENT}
        )  # fmt: skip
        self._client = WorkerClient(
            log_path=self.plan.worker_log, cache=self.plan.cache_settings(), command=WORKER
        )
        self._client.load(self.plan.choices[0].configuration())
        self._until(Loaded)
        self._until(TiersChanged)

    def ask(self, owner: str, messages: Sequence[Message]) -> tuple[Asked, Message]:
        """Give what was asked and answered, and the answer as a message."""
        assert self._client is not None
        request = GenerationRequest(messages=tuple(messages), max_tokens=MAX_TOKENS, owner=owner)
        self._client.generate(request)
        asked = Asked(self.plan.choices[0].name, request.messages)
        finished: Finished | None = None
        for event in self._until(Finished):
            match event:
                case TokensCommitted():
                    asked.tokens += [token.token for token in event.tokens]
                    asked.margins += [token.margin or 0.0 for token in event.tokens]
                case CacheChanged():
                    asked.n_hot, asked.n_warm = event.n_hot, event.n_warm
                    asked.n_cold, asked.n_prompt = event.n_cold, event.n_prompt
                case Finished():
                    finished = event
                case _:
                    pass
        if finished is None:
            return asked, Message("assistant", "")
        said = Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
        return asked, said

    def prefetch(self, messages: Sequence[Message]) -> None:
        """Ask for what is kept of a conversation to be brought into memory."""
        assert self._client is not None
        self._client.prefetch(messages)

    def clear(self) -> None:
        """Ask for everything that is kept to be dropped."""
        assert self._client is not None
        self._client.manage_cache("clear")

    def close(self) -> None:
        """End it, and look at how that went."""
        assert self._client is not None
        process = self._client._process
        self._note(self._client.poll(0.2))
        self._client.close()
        code = None if process is None else process.popen.wait()
        if code != 0:
            self.tally.blame("crash", self.name, f"the worker ended with {code}")
        log = self.plan.worker_log
        said = log.read_text(errors="replace") if log.exists() else ""
        for fault in FAULTS:
            if fault in said:
                at = said.index(fault)
                self.tally.blame("log", self.name, f"the worker said {said[at : at + 800]!r}")

    def _until(self, last: type[Event]) -> list[Event]:
        assert self._client is not None
        events: list[Event] = []
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            new = self._client.poll(0.5)
            self._note(new)
            events += new
            if any(isinstance(event, last | WorkerStopped | Failed) for event in new):
                return events
        self.tally.blame("hang", self.name, f"no {last.__name__} in {PATIENCE_S:.0f} s")
        return events

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Failed() | WorkerStopped():
                    self.tally.blame("crash", self.name, f"{event.title}: {event.message}")
                case TiersChanged(report):
                    self.is_open = self.is_open or len(report.tiers) > 1
                    self.notes += [note.text for note in report.notes if note.is_problem]
                case _:
                    pass
