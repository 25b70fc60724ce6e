"""Compares answers with those of an engine without a cache, beside the next rounds."""

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from torture.oracle import Asked, Oracle
from torture.plan import Choice
from torture.tally import Tally

BACKLOG = 8
"""Waiting answers beyond which one that no kept state was used for is not compared."""


class Judge:
    """One thread with an oracle for each model."""

    def __init__(self, choices: Sequence[Choice], tally: Tally) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._tally = tally
        self._waiting: SimpleQueue[tuple[Asked, str] | None] = SimpleQueue()
        self._oracles: dict[str, Oracle] = {}
        self._is_done = False
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        self._thread.start()

    def take(self, asked: Asked, where: str) -> None:
        """Compare an answer some time; all that kept states were used for are compared."""
        self._tally.add("answers")
        for tier in ("hot", "warm", "cold"):
            self._tally.add(f"prompt tokens from {tier}", getattr(asked, f"n_{tier}"))
        self._tally.add("prompt tokens", asked.n_prompt)
        if asked.is_restored:
            self._tally.add("answers behind restored states")
        elif self._waiting.qsize() > BACKLOG:
            self._tally.add("answers not compared (none of them restored)")
            return
        self._waiting.put((asked, where))

    def close(self) -> None:
        """Compare what waits, and free the models."""
        self._waiting.put(None)
        self._thread.join()
        if not self._is_done:
            self._tally.blame("crash", "the judge", "answers are not compared: it stopped")
        for oracle in self._oracles.values():
            oracle.close()

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            asked, where = waiting
            oracle = self._oracles.get(asked.choice)
            if oracle is None:
                oracle = self._oracles[asked.choice] = Oracle(self._choices[asked.choice])
            wrong = oracle.judge(asked)
            self._tally.add("answers compared")
            if asked.is_restored:
                self._tally.add("answers behind restored states compared")
            if wrong is not None:
                tiers = f"{asked.n_hot} hot, {asked.n_warm} warm, {asked.n_cold} cold"
                self._tally.blame("answer", where, f"{asked.choice} ({tiers}): {wrong}")
        self._is_done = True
