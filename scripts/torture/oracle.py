"""What an engine without a cache answers, and whether the answers of others are the same."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from engine.backends import base
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import SamplingSettings
from engine.generation.prompt import asked_prompt
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message
from engine.sampling import Sampler
from engine.speculation.verify import NEAR_TIE
from torture.ledger import Tally
from torture.plan import N_SLOTS, Choice, Line

BACKLOG = 8
"""Waiting answers beyond which one that no kept state was used for is not compared."""


@dataclass(slots=True)
class Asked:
    """One request as the engine got it, and what came of it before it ended or was killed."""

    choice: str
    messages: tuple[Message, ...]
    continues: tuple[int, ...] = ()
    continues_text: str = ""
    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    n_hot: int = 0
    n_warm: int = 0
    n_cold: int = 0
    n_prompt: int = 0

    @property
    def is_restored(self) -> bool:
        """Whether a part of the prompt came from main memory or from disk."""
        return self.n_warm + self.n_cold > 0


def asked_in(lines: Sequence[Line]) -> list[Asked]:
    """The requests of a journal that began to be answered."""
    found: dict[int, Asked] = {}
    for line in lines:
        number = line.get("number")
        if not isinstance(number, int):
            continue
        if line["kind"] == "asked":
            found[number] = _asked(line)
            continue
        asked = found[number]
        match line:
            case {"kind": "tokens", "tokens": list(tokens), "margins": list(margins)}:
                asked.tokens += tokens
                asked.margins += margins
            case {"kind": "reused", "hot": int(hot), "warm": int(warm), "cold": int(cold),
                  "prompt": int(n_prompt)}:  # fmt: skip
                asked.n_hot, asked.n_warm, asked.n_cold = hot, warm, cold
                asked.n_prompt = n_prompt
            case _:
                pass
    return [asked for asked in found.values() if asked.tokens]


def _asked(line: Line) -> Asked:
    spelled, continues, choice = line["messages"], line["continues"], line["choice"]
    assert isinstance(spelled, list)
    assert isinstance(continues, list)
    messages = tuple(
        Message(role, content, None if tokens is None else tuple(tokens), vocabulary)
        for role, content, tokens, vocabulary in spelled
    )
    return Asked(str(choice), messages, tuple(continues), str(line["continues_text"]))


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first place where an answer is not that of an engine without a cache."""

    at: int
    said: int
    right: int
    said_margin: float
    right_margin: float

    def __str__(self) -> str:
        """Say it in one line."""
        if self.said != self.right:
            return f"token {self.at} is {self.said}, without a cache {self.right}"
        return (
            f"token {self.at} leads by {self.said_margin!r} logits, "
            f"without a cache by {self.right_margin!r}"
        )


class Oracle:
    """One model, asked token by token into an empty sequence."""

    def __init__(self, choice: Choice) -> None:
        configuration = choice.configuration()
        settings = replace(configuration, n_slots=1, n_ctx=configuration.n_ctx // N_SLOTS)
        self._backend = LlamaCppBackend(settings, NativeLog())
        self._template = ChatTemplate(
            self._backend.chat_template,
            bos=self._spelling(self._backend.vocabulary.bos),
            eos=self._spelling(self._backend.vocabulary.eos),
        )
        self._sequence: base.Sequence = self._backend.open()
        self._known: dict[tuple[int, ...], list[tuple[int, float]]] = {}
        """What was computed already: tokens and leads behind each prompt."""

    def judge(self, asked: Asked) -> Wrong | None:
        """Compare every token and the bits of its lead; None where all are the same.

        Cells of a sliding window lie in another order after a restore, so that sums differ in their
        last bits: there tokens are compared, up to the first near tie that fell the other way.
        """
        request = GenerationRequest(
            asked.messages, continues=asked.continues, continues_text=asked.continues_text
        )
        vocabulary, n_ctx = self._backend.vocabulary, self._backend.n_ctx
        line = list(asked_prompt(request, self._template, vocabulary, n_ctx=n_ctx).tokens)
        rights = self._known.setdefault(tuple(line), [])
        if len(rights) < len(asked.tokens):
            self._compute(line, rights, len(asked.tokens))
        for at, (token, margin) in enumerate(zip(asked.tokens, asked.margins, strict=True)):
            right, right_margin = rights[at]
            if self._backend.n_swa and (token == right or right_margin < NEAR_TIE):
                if token != right:
                    return None
            elif rights[at] != (token, margin):
                return Wrong(at, token, rights[at][0], margin, rights[at][1])
        return None

    def _compute(self, prompt: list[int], rights: list[tuple[int, float]], n: int) -> None:
        """The greedy tokens behind a prompt, each with its lead, from an empty sequence."""
        line = list(prompt)
        rights.clear()
        sampler = Sampler(SamplingSettings(), 0)
        self._sequence.crop(0)
        for start in range(0, len(line) - 1, self._backend.n_batch):
            self._sequence.prefill(line[start : min(start + self._backend.n_batch, len(line) - 1)])
        for _ in range(n):
            choice = sampler.choose(self._sequence.decode(line[-1]).logits[0], line, len(line))
            rights.append((choice.token, choice.margin))
            line.append(choice.token)

    def close(self) -> None:
        """Free the model."""
        self._backend.close()

    def _spelling(self, token: int | None) -> str:
        vocabulary = self._backend.vocabulary
        return "" if token is None else vocabulary.text(token).decode("utf-8", "replace")


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
