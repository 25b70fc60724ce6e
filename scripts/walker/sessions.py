"""Random sessions on the engine, in which several replies run at once.

    make sessions [N=500] [SEED=N]

Each session has one slot or more, a cache of some budget, a draft model or none, chats of several
questions, thinking, stop texts, limits, cancellations in any phase, and decodes that fail. Every
fourth runs llama.cpp on a tiny GGUF file, some of those with images. A complete reply must have the
same tokens as the reply of a session without cache, drafts and neighbours; a cut one must be a
start of it. At the end no slot is busy and no cached state is locked.
"""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.configuration import (
    Configuration,
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import ContextFullError, DecodeError, EngineError, IncompatiblePairError
from engine.events import Event, Finished, FinishReason, TokenKind, TokensCommitted
from engine.generation.scheduler import Generation
from engine.generation.session import Session
from engine.images import read_image
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import TEMPLATE, FakeBackend, FakeVocabulary
from tests.support.filled_models import filled_model
from tests.support.filled_projectors import filled_projector, png
from tests.support.sessions import OFF, as_message, committed
from walker.checks import wrong_stats
from walker.home import ARCHITECTURES

THINKS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1].lstrip() if m.role == 'assistant' else m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
N_REPLIES = 8
MAX_STEPS = 6000
PRINT_EVERY = 100
STOPPED = (FinishReason.STOP_STRING, FinishReason.STOP_TOKEN, FinishReason.END)
"""After such an end the draft may have further accepted tokens."""
CUT = (FinishReason.CANCELLED, FinishReason.CONTEXT)
NEAR_TIE = 0.05
"""Margin of a token within llama.cpp's rounding, which depends on the order of cells."""
FAILED = "this decode fails on purpose"


class FailingBackend(FakeBackend):
    """A fake language model whose decodes sometimes fail, or cancel a reply."""

    def __init__(self, rng: random.Random, chance: float, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]  # fields of the fake one
        self._rng, self._chance = rng, chance
        self.to_cancel: Cancellation | None = None
        """Cancelled by the next decode."""

    def n_free(self, sequence: object) -> int:  # called before each decode
        cancellation, self.to_cancel = self.to_cancel, None
        if cancellation is not None:
            cancellation.cancel()
        if self._rng.random() < self._chance:
            raise DecodeError(FAILED)
        return super().n_free(sequence)  # type: ignore[arg-type]  # one of its own


@dataclass
class Machine:
    """Makes equal backends: one for the session, and one for each reply alone."""

    rng: random.Random
    template: str
    fake: dict[str, object] = field(default_factory=dict)
    gguf: Configuration | None = None
    images: Sequence[str] = ()
    """References to images in a question."""

    def open(self, *, is_alone: bool, chance: float = 0.0) -> Backend:
        """A backend, alone with one sequence; `chance` is that of a failing decode."""
        if self.gguf is None:
            one = {"n_sequences": 1} if is_alone else {}
            return FailingBackend(self.rng, chance, **{**self.fake, **one})
        alone = replace(self.gguf, n_slots=1, n_ctx=self.gguf.n_ctx // self.gguf.n_slots)
        return LlamaCppBackend(alone if is_alone else self.gguf, NativeLog())

    def session(
        self, backend: Backend, speculation: SpeculationSettings = OFF,
        draft: FakeBackend | None = None,
    ) -> Session:  # fmt: skip
        """A session on a backend."""
        template = ChatTemplate(self.template, bos="<bos>", eos="<end>")
        return Session(backend, template, speculation, draft_backend=draft)


@dataclass
class Asked:
    """A request and its reply so far."""

    request: GenerationRequest
    cancellation: Cancellation
    generation: Generation
    events: list[Event] = field(default_factory=list)

    @property
    def finished(self) -> Finished | None:
        """The last event; None while the reply runs and if it failed."""
        return next((event for event in self.events if isinstance(event, Finished)), None)


class RandomSession:
    """One session by a seed.

    Args:
        seed: Makes the session.
        folder: Models and images are written here.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        is_real = seed % 4 == 3
        self.machine = self._real(folder) if is_real else self._fake()
        self._chance = 0.0 if is_real else self.rng.choice((0.0, 0.0, 0.002, 0.02))
        self._chats: dict[str, list[Message]] = {}

    def _fake(self) -> Machine:
        rng = self.rng
        can_crop = rng.random() < 0.8
        n_sequences = rng.choice((1, 2, 3))
        fake: dict[str, object] = {
            "n_ctx": rng.choice((60, 90, 150, 400)),
            "n_batch": rng.choice((8, 17, 32)),
            "n_sequences": n_sequences,
            "can_crop": can_crop,
            "can_slice": can_crop and rng.random() < 0.7,
            "sharpness": 5.0,
            "end_bias": rng.choice((-6.0, -60.0)),
            "seed": rng.randrange(3),
        }
        return Machine(rng, rng.choice((TEMPLATE, TEMPLATE, THINKS)), fake)

    def _real(self, folder: Path) -> Machine:
        rng = self.rng
        architecture = rng.choice(ARCHITECTURES)
        path, projector = folder / f"{architecture}.gguf", folder / "mmproj.gguf"
        if not path.exists():
            filled_model(path, architecture, seed=1)
        if not projector.exists():
            filled_projector(projector)
        pictures = [png(folder / f"{n}.png", seed=n) for n in range(2)]
        sees = architecture == "llama" and rng.random() < 0.5
        n_slots = rng.choice((1, 2, 3))
        configuration = Configuration(
            model_path=path, mmproj_path=projector if sees else None,
            n_ctx=rng.choice((256, 512)) * n_slots, n_batch=rng.choice((32, 128)), n_ubatch=1,
            flash_attention="on", n_threads=1, n_slots=n_slots,
        )  # fmt: skip
        images = [read_image(each, each.name).reference for each in pictures] if sees else []
        template = rng.choice((TEMPLATE.replace("{{ bos_token }}", ""), THINKS))
        return Machine(rng, template, gguf=configuration, images=images)

    def _draft(self) -> FakeBackend | None:
        fake, rng = self.machine.fake, self.rng
        if not fake or not fake["can_crop"] or rng.random() < 0.5:
            return None
        vocabulary = FakeVocabulary(200) if rng.random() < 0.1 else None
        return FakeBackend(
            vocabulary, n_ctx=rng.choice((60, 400)), n_rows=1, noise=rng.choice((0.0, 0.3, 2.0)),
            sharpness=5.0, seed=int(str(fake["seed"])),
        )  # fmt: skip

    def _speculation(self, *, has_draft: bool) -> SpeculationSettings:
        rng = self.rng
        names = [PredictorName.OFF, PredictorName.LOOKUP, PredictorName.SUFFIX,
                 PredictorName.COMBINED]  # fmt: skip
        return SpeculationSettings(
            predictor=rng.choice([*names, PredictorName.DRAFT] if has_draft else names),
            controller=rng.choice(list(ControllerName)),
            n_draft=rng.choice((1, 3, 8)),
            lookup_pattern_min=rng.choice((1, 3)),
            suffix_min_confidence=rng.choice((0.0, 0.7)),
            draft_min_confidence=rng.choice((0.0, 0.6)),
            bonus_token=rng.random() < 0.9,
        )

    def _attached_cache(self, session: Session, backend: Backend) -> PrefixCache:
        rng = self.rng
        settings = CacheSettings(
            warm_bytes=rng.choice((0, 300, 20_000, 10**7)), cold_bytes=0, min_tokens=1,
            checkpoint_tokens=rng.choice((0, 8)), reserve_bytes=0,
        )  # fmt: skip
        tiers = PrefixCache(
            Namespace("made", "up", ()), can_slice=backend.can_slice,
            store=None, settings=settings, in_background=False, available=lambda: 10**12,
        )  # fmt: skip
        session.attach_cache(tiers, settings)
        return tiers

    def run(self) -> list[str]:
        """Run the session; returns what is wrong."""
        backend = self.machine.open(is_alone=False, chance=self._chance)
        draft = self._draft()
        speculation = self._speculation(has_draft=draft is not None)
        try:
            session = self.machine.session(backend, speculation, draft)
        except IncompatiblePairError:
            self.outcomes["refused pair"] += 1
            backend.close()
            return []
        tiers = self._attached_cache(session, backend) if self.rng.random() < 0.8 else None
        asked, problems = self._replies(session, backend, has_draft=draft is not None)
        for each in asked:
            problems += [f"{problem}: {each.request}" for problem in self._wrong(each)]
        problems += _unreleased(session, tiers)
        session.close()
        return problems

    def _replies(
        self, session: Session, backend: Backend, *, has_draft: bool
    ) -> tuple[list[Asked], list[str]]:
        rng = self.rng
        running: list[Asked] = []
        over: list[Asked] = []
        n_steps = 0
        while len(over) < N_REPLIES:
            n_steps += 1
            if n_steps > MAX_STEPS:
                return over, [f"{len(running)} replies do not end"]
            if len(running) + len(over) < N_REPLIES and (not running or rng.random() < 0.1):
                request, cancellation = self._request(), Cancellation()
                running.append(Asked(request, cancellation, session.begin(request, cancellation)))
            if rng.random() < 0.02:
                session.set_speculation(self._speculation(has_draft=has_draft))
            session.step()
            for each in list(running):
                if rng.random() < 0.9 or len(running) == 1:
                    each.events += each.generation.take()
                if each.generation.is_over:
                    each.events += each.generation.take()
                    running.remove(each)
                    over.append(each)
                    self._remember(each)
                    if rng.random() < 0.7:
                        session.keep()
                elif rng.random() < 0.003:
                    self._cancel(each, backend)
        return over, []

    def _cancel(self, asked: Asked, backend: Backend) -> None:
        if isinstance(backend, FailingBackend) and self.rng.random() < 0.5:
            backend.to_cancel = asked.cancellation
        else:
            asked.cancellation.cancel()

    def _request(self) -> GenerationRequest:
        rng = self.rng
        owner = rng.choice(("", "chat:1", "chat:2", "chat:3"))
        chat = self._chats.get(owner, []) if rng.random() < 0.7 else []
        text = "ab" * rng.randint(1, 12) + rng.choice(("", "xy" * rng.randint(1, 8)))
        if self.machine.images and rng.random() < 0.5:
            text = f"{text} {rng.choice(self.machine.images)} {text[:3]}"
        messages = (*chat, Message("user", text))
        if owner:
            self._chats[owner] = list(messages)
        sampling = SamplingSettings(
            temperature=rng.choice((0.0, 0.0, 0.8)),
            top_k=rng.choice((0, 20)),
            repetition_penalty=rng.choice((1.0, 1.0, 1.3)),
            thinking_budget=rng.choice((0, 0, 1, 5)),
        )
        return GenerationRequest(
            messages,
            sampling=sampling,
            max_tokens=rng.choice((0, 1, 5, 30, 30, None)),
            seed=rng.choice((None, 3)),
            owner=owner,
            stop=rng.choice(((), (), ("ab",), ("a", "\n"))),
        )

    def _remember(self, asked: Asked) -> None:
        finished, owner = asked.finished, asked.request.owner
        chat = self._chats.get(owner)
        if finished is not None and chat is not None and chat == list(asked.request.messages):
            self._chats[owner] = [*chat, as_message(finished)] if len(chat) < 6 else []

    def _wrong(self, asked: Asked) -> Iterator[str]:
        fault, finished = asked.generation.fault, asked.finished
        if finished is None:
            self.outcomes[type(fault).__name__] += 1
            if not (isinstance(fault, ContextFullError) or FAILED in str(fault)):
                yield f"failed: {fault!r}"
            return
        self.outcomes[finished.reason] += 1
        limit, n_tokens = asked.request.max_tokens, len(finished.token_ids)
        if limit is not None and n_tokens > limit:
            yield f"{n_tokens} tokens with a limit of {limit}"
        yield from wrong_stats(asdict(finished.stats), n_tokens)
        yield from _wrong_events(asked.events, finished)
        yield from self._unlike_alone(asked, finished)

    def _unlike_alone(self, asked: Asked, finished: Finished) -> Iterator[str]:
        """How the reply differs from that of a session with nothing but the model."""
        session = self.machine.session(self.machine.open(is_alone=True))
        alone: Event | None = None
        with suppress(ContextFullError):
            request = replace(asked.request, seed=finished.seed)
            *_, alone = session.generate(request, Cancellation())
        session.close()
        tokens = finished.token_ids
        if not isinstance(alone, Finished):
            yield "alone it does not fit"
        elif tokens[: len(alone.token_ids)] != alone.token_ids[: len(tokens)]:
            if self._is_near_tie(asked, alone):
                self.outcomes["near tie"] += 1
            else:
                yield f"{tokens}, alone {alone.token_ids}"
        elif finished.reason not in CUT:
            ends = [(each.text, each.reason) for each in (finished, alone)]
            if ends[0] != ends[1]:
                yield f"{ends[0]}, alone {ends[1]}"

    def _is_near_tie(self, asked: Asked, alone: Finished) -> bool:
        """Whether rounding may have changed the first token that differs."""
        pairs = zip(committed(asked.events), alone.token_ids, strict=False)
        margin = next((token.margin for token, other in pairs if token.token != other), None)
        return self.machine.gguf is not None and margin is not None and margin < NEAR_TIE


def _wrong_events(events: Sequence[Event], finished: Finished) -> Iterator[str]:
    """Contradictions between the committed tokens and the finished reply."""
    text = "".join(event.text for event in events if isinstance(event, TokensCommitted))
    n_drafts = sum(token.kind is TokenKind.DRAFT for token in committed(events))
    n_accepted, is_stopped = finished.stats.n_accepted, finished.reason in STOPPED
    if n_drafts > n_accepted or (n_drafts < n_accepted and not is_stopped):
        yield f"{n_drafts} drafts committed, {n_accepted} counted"
    if not finished.text.startswith(text):
        yield f"{text!r} was shown of {finished.text!r}"


def _unreleased(session: Session, tiers: PrefixCache | None) -> Iterator[str]:
    """What the finished replies still hold."""
    if any(slot.is_busy for slot in session._recall.slots.opened):
        yield "a slot is busy"
    entries = () if tiers is None else tiers._index.entries.values()
    if locks := [entry.n_locks for entry in entries if entry.n_locks]:
        yield f"locks: {locks}"
    if session._scheduler.n_replies:
        yield f"{session._scheduler.n_replies} replies are counted"


def run_sessions(n: int, first: int, folder: Path) -> list[str]:
    """Run `n` sessions from a seed on; returns what is wrong, with the seed."""
    problems: list[str] = []
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + n):
        session = RandomSession(seed, folder)
        try:
            found = session.run()
        except EngineError as error:
            found = [f"raised {error!r}"]
        outcomes += session.outcomes
        problems += [f"seed {seed}: {problem}" for problem in found]
        for problem in found[:2]:
            print(f"FOUND seed {seed}: {problem[:1500]}", flush=True)
        if (seed - first + 1) % PRINT_EVERY == 0:
            print(f"{seed - first + 1} sessions, {dict(outcomes)}", flush=True)
    return problems


def main() -> int:
    """Run sessions; 1 if something is wrong."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory(prefix="kvchat-sessions-") as folder:
        problems = run_sessions(n, first, Path(folder))
    print(f"{n} sessions from seed {first}: {len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
