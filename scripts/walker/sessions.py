"""Random sessions on the engine: what several replies at once come to is what each alone would be.

    make sessions [N=500] [SEED=N]

Each session has slots that share cells or not, a cache with some budget, a draft model or none,
chats that go on, thinking, stop texts, limits, cancels in any phase, and decodes that fail. Every
fourth runs on a tiny GGUF file and llama.cpp, some of those with images. Every reply that was
not cut must be token by token what a session without cache, drafts and company makes of the same
request; of one that was cut, its start. Then nothing may be held: no slot, no lock.
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
from walker.checks import wrong_stats

OFF = SpeculationSettings(predictor=PredictorName.OFF)
THINKS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1].lstrip() if m.role == 'assistant' else m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
N_REPLIES = 8
MOST_STEPS = 6000
TOLD_EVERY = 100
ARCHITECTURES = ("llama", "qwen2", "gemma3", "mamba")
STOPPED = (FinishReason.STOP_STRING, FinishReason.STOP_TOKEN, FinishReason.END)
"""Behind such an end a draft may have more tokens that were accepted."""
CUT = (FinishReason.CANCELLED, FinishReason.CONTEXT)
NEAR_TIE = 0.05
"""Lead of a token that llama.cpp's rounding may take away, where cells lie otherwise than alone."""
FAILED = "this decode fails on purpose"


class FailingBackend(FakeBackend):
    """A fake language model whose decodes fail now and then, or are what a cancel meets."""

    def __init__(self, rng: random.Random, chance: float, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]  # fields of the fake one
        self._rng, self._chance = rng, chance
        self.to_cancel: Cancellation | None = None
        """Is cancelled by the next decode, in the middle of it."""

    def n_free(self, sequence: object) -> int:  # asked before each decode
        cancellation, self.to_cancel = self.to_cancel, None
        if cancellation is not None:
            cancellation.cancel()
        if self._rng.random() < self._chance:
            raise DecodeError(FAILED)
        return super().n_free(sequence)  # type: ignore[arg-type]  # one of its own


@dataclass
class Machine:
    """Backends of one make: a new one for each session, alike but for company."""

    rng: random.Random
    template: str
    fake: dict[str, object] = field(default_factory=dict)
    gguf: Configuration | None = None
    images: Sequence[str] = ()
    """How a text names each image that the model can see."""

    def open(self, *, is_alone: bool, chance: float = 0.0) -> Backend:
        """A backend; alone it has one sequence."""
        if self.gguf is not None:
            alone = replace(self.gguf, n_slots=1, n_ctx=self.n_ctx)
            return LlamaCppBackend(alone if is_alone else self.gguf, NativeLog())
        one = {"n_sequences": 1} if is_alone else {}
        return FailingBackend(self.rng, chance, **{**self.fake, **one})

    @property
    def n_ctx(self) -> int:
        """Tokens of a sequence alone."""
        if self.gguf is None:
            n_ctx = self.fake["n_ctx"]
            assert isinstance(n_ctx, int)
            return n_ctx
        return self.gguf.n_ctx // self.gguf.n_slots

    def session(self, backend: Backend, **settings: object) -> Session:
        """A session without speculation, unless settings say otherwise."""
        chosen: dict[str, object] = {"speculation": OFF, **settings}
        template = ChatTemplate(self.template, bos="<bos>", eos="<end>")
        return Session(backend, template, **chosen)  # type: ignore[arg-type]  # its arguments


@dataclass
class Asked:
    """A reply under way, and what it told."""

    request: GenerationRequest
    cancellation: Cancellation
    generation: Generation
    events: list[Event] = field(default_factory=list)

    @property
    def finished(self) -> Finished | None:
        """What it ended with; None where it failed."""
        return next((event for event in self.events if isinstance(event, Finished)), None)


class RandomSession:
    """One session by a seed, and what is wrong with it."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Make everything that it needs.

        Args:
            seed: Of all of it.
            folder: Where models and images are, or are made.
        """
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        is_real = seed % 4 == 3
        self.machine = self._real(folder) if is_real else self._fake()
        self._chance = 0.0 if is_real else self.rng.choice((0.0, 0.0, 0.002, 0.02))
        self._chats: dict[str, list[Message]] = {}

    # --- what it is made of ---

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
        pictures = [folder / f"{n}.png" for n in range(2)]
        if not path.exists():
            filled_model(path, architecture, seed=1)
        if not projector.exists():
            filled_projector(projector)
            for n, picture in enumerate(pictures):
                png(picture, seed=n)
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

    def _cache(self, backend: Backend) -> tuple[PrefixCache, CacheSettings]:
        rng = self.rng
        settings = CacheSettings(
            warm_bytes=rng.choice((0, 300, 20_000, 10**7)), cold_bytes=0, min_tokens=1,
            checkpoint_tokens=rng.choice((0, 8)), reserve_bytes=0,
        )  # fmt: skip
        tiers = PrefixCache(
            Namespace("made", "up", ()), can_slice=backend.can_slice,
            split_state=backend.split_state, store=None,
            settings=settings, in_background=False, available=lambda: 10**12,
        )  # fmt: skip
        return tiers, settings

    # --- what happens ---

    def run(self) -> list[str]:
        """Live it; what is wrong, nothing where all holds."""
        backend = self.machine.open(is_alone=False, chance=self._chance)
        draft = self._draft()
        speculation = self._speculation(has_draft=draft is not None)
        try:
            session = self.machine.session(backend, speculation=speculation, draft_backend=draft)
        except IncompatiblePairError:
            self.outcomes["refused pair"] += 1
            backend.close()
            return []
        tiers = None
        if self.rng.random() < 0.8:
            tiers, settings = self._cache(backend)
            session.attach_cache(tiers, settings)
        asked, problems = self._live(session, backend, has_draft=draft is not None)
        for each in asked:
            problems += [f"{problem}: {each.request}" for problem in self._wrong(each)]
        problems += _held(session, tiers)
        session.close()
        return problems

    def _live(
        self, session: Session, backend: Backend, *, has_draft: bool
    ) -> tuple[list[Asked], list[str]]:
        rng = self.rng
        running: list[Asked] = []
        over: list[Asked] = []
        n_steps = 0
        while len(over) < N_REPLIES:
            n_steps += 1
            if n_steps > MOST_STEPS:
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
            said = Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
            self._chats[owner] = [*chat, said] if len(chat) < 6 else []

    # --- what must hold ---

    def _wrong(self, asked: Asked) -> Iterator[str]:
        fault, finished = asked.generation.fault, asked.finished
        if finished is None:
            name = type(fault).__name__
            self.outcomes[name] += 1
            is_meant = isinstance(fault, ContextFullError) or FAILED in str(fault)
            if not is_meant:
                yield f"failed: {fault!r}"
            return
        self.outcomes[finished.reason] += 1
        limit, n_said = asked.request.max_tokens, len(finished.token_ids)
        if limit is not None and n_said > limit:
            yield f"{n_said} tokens where {limit} are the most"
        yield from wrong_stats(asdict(finished.stats), n_said)
        yield from _wrong_kinds(asked.events, finished)
        yield from self._unlike_plain(asked, finished)

    def _unlike_plain(self, asked: Asked, finished: Finished) -> Iterator[str]:
        """Compare it with what a session makes that has nothing but the model."""
        backend = self.machine.open(is_alone=True)
        session = self.machine.session(backend)
        plain: Finished | None = None
        with suppress(ContextFullError):
            request = replace(asked.request, seed=finished.seed)
            *_, last = session.generate(request, Cancellation())
            plain = last if isinstance(last, Finished) else None
        session.close()
        said, is_cut = finished.token_ids, finished.reason in CUT
        if plain is None:
            yield "alone it does not fit"
        elif said[: len(plain.token_ids)] != plain.token_ids[: len(said)]:
            if self._is_near_tie(asked, plain):
                self.outcomes["near tie"] += 1
            else:
                yield f"{said}, alone {plain.token_ids}"
        elif not is_cut and (finished.text, finished.reason) != (plain.text, plain.reason):
            yield f"{finished.text!r} {finished.reason}, alone {plain.text!r} {plain.reason}"

    def _is_near_tie(self, asked: Asked, plain: Finished) -> bool:
        """Whether rounding may have made the first token that differs another one."""
        tokens = [token for event in asked.events if isinstance(event, TokensCommitted)
                  for token in event.tokens]  # fmt: skip
        pairs = zip(tokens, plain.token_ids, strict=False)
        margin = next((token.margin for token, other in pairs if token.token != other), None)
        return self.machine.gguf is not None and margin is not None and margin < NEAR_TIE


def _wrong_kinds(events: Sequence[Event], finished: Finished) -> Iterator[str]:
    """Tokens that came, by where they came from, against what the statistics say."""
    tokens = [token for event in events if isinstance(event, TokensCommitted)
              for token in event.tokens]  # fmt: skip
    text = "".join(event.text for event in events if isinstance(event, TokensCommitted))
    n_drafts = sum(token.kind is TokenKind.DRAFT for token in tokens)
    n_accepted, is_stopped = finished.stats.n_accepted, finished.reason in STOPPED
    if n_drafts > n_accepted or (n_drafts < n_accepted and not is_stopped):
        yield f"{n_drafts} drafts came, {n_accepted} are counted"
    if not finished.text.startswith(text):
        yield f"{text!r} was shown of {finished.text!r}"


def _held(session: Session, tiers: PrefixCache | None) -> Iterator[str]:
    """What replies that are over still hold."""
    busy = [slot.is_busy for slot in session._recall._hot.slots]
    if any(busy):
        yield f"busy slots: {busy}"
    locked = [] if tiers is None else [
        node.n_locks for node in tiers._catalog.tree.nodes() if node.n_locks
    ]  # fmt: skip
    if locked:
        yield f"locks: {locked}"
    if session._scheduler.n_replies:
        yield f"{session._scheduler.n_replies} replies are counted"


def run_sessions(n: int, first: int, folder: Path) -> list[str]:
    """Run so many sessions from a seed on; what is wrong, with the seed that shows it."""
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
        if (seed - first + 1) % TOLD_EVERY == 0:
            print(f"{seed - first + 1} sessions, {dict(outcomes)}", flush=True)
    return problems


def main() -> int:
    """Run them; 1 where something is wrong."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory(prefix="kvchat-sessions-") as folder:
        problems = run_sessions(n, first, Path(folder))
    print(f"{n} sessions from seed {first}: {len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
