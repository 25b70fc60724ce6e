"""One chat with one model: prefill, then rounds of draft, verify, accept and crop.

Committed tokens are `tokens`. The last one is pending: the sequence has decoded exactly
`tokens[:-1]`. A round decodes the pending token and the draft in one batch, keeps what the target
would have said itself, adds the target's own next token, and crops the cache back to the
invariant. Everything is reported by events; nobody is called.
"""

import secrets
from collections.abc import Iterator
from collections.abc import Sequence as Tokens

from engine.backends.base import Backend, Sequence
from engine.cache.prefix_cache import PrefixCache
from engine.cache.recall import Recall
from engine.cache.report import CacheReport, CacheSettings
from engine.cache.requantised import OtherTypes, Requantised
from engine.clock import Stopwatch
from engine.configuration import SpeculationSettings
from engine.errors import DecodeAborted, EngineError, IncompatiblePairError
from engine.events import (
    CacheChanged,
    CostsMeasured,
    Event,
    Finished,
    FinishReason,
    RoundFinished,
    SpeculationChanged,
    ThreadsChanged,
    TiersChanged,
    TokensCommitted,
)
from engine.generation.prefill import FirstRow, Prefill
from engine.generation.prompt import asked_prompt, chat_prompt
from engine.generation.reply import Reply, Round, StreamingText
from engine.generation.threads import Threads
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.sampling import Sampler
from engine.speculation.auto import AutoController
from engine.speculation.costs import CostProfile, Costs, PlainStep
from engine.speculation.drafter import Draft, Drafter, make_controller
from engine.speculation.pairs import check_pair
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.guard import Busy, DisabledPredictor
from engine.speculation.registry import Registry
from engine.speculation.stats import ReplyStats
from engine.speculation.verify import Exactness, Verdict, compares, settle, verify_draft

SEED_BITS = 63
COSTS_EVERY = 16
"""Rounds after which the measured costs are told again."""
FIRST_TOKEN = "the first token comes with the prompt"


class Session:
    """A backend, perhaps a draft backend, and the settings that can change between rounds.

    One reply at a time, from one thread at a time; `Cancellation` may be used from any.

    Raises:
        IncompatiblePairError: the draft's vocabulary is not the target's.
    """

    def __init__(
        self,
        backend: Backend,
        template: ChatTemplate,
        speculation: SpeculationSettings,
        *,
        draft_backend: Backend | None = None,
        disabled_predictor: DisabledPredictor | None = None,
        costs: CostProfile | None = None,
        n_ctx_train: int | None = None,
        threads: Threads | None = None,
        custom_predictor: Predictor | None = None,
    ) -> None:
        """A session over loaded models.

        Args:
            backend: The target.
            template: Makes prompts of messages.
            speculation: Until `set_speculation` says otherwise.
            draft_backend: The draft model.
            disabled_predictor: Stays off, whatever is asked for.
            costs: Of an earlier run.
            n_ctx_train: Tokens that the target was trained on.
            threads: Of the backends; None leaves them as they were opened.
            custom_predictor: What the predictor `custom` is, in place of an installed plugin;
                whoever made it closes it.
        """
        self._backend = backend
        self._n_ctx_train = n_ctx_train
        self._template = template
        self._draft_backend = draft_backend
        if draft_backend is not None:
            if not backend.can_crop:
                raise IncompatiblePairError(
                    "the target is a recurrent model: its state cannot go back behind a refuted "
                    "token, so it cannot be drafted for; load it without a draft"
                )
            check_pair(backend.vocabulary, draft_backend.vocabulary)
        self._recall = Recall(backend)
        self._sequence: Sequence = self._recall.sequence
        self._registry = Registry(backend, draft_backend, disabled_predictor, custom_predictor)
        self._costs = Costs(costs)
        self._auto = AutoController(self._costs)
        self._threads = Threads((backend,), follows=(False, False)) if threads is None else threads
        self._costs.use_threads(self._threads.n_decode)
        self._prefill = Prefill(backend, self._recall, self._costs, self._threads)
        self._wanted = speculation
        self._is_replying = False
        self._is_closed = False
        self._exactness = Exactness()

    @property
    def _plain_step(self) -> PlainStep:
        return self._costs.plain

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors that can be switched on."""
        return self._registry.names(self._wanted)

    def busy_predictor(self) -> Busy | None:
        """The predictor that is at work now, None while none is; from any thread."""
        return self._registry.busy()

    def attach_cache(
        self, tiers: PrefixCache, settings: CacheSettings, others: OtherTypes | None = None
    ) -> None:
        """Look for prompts in these tiers too, and keep there what replies compute.

        Args:
            tiers: Of this model, its settings and its build; whoever made them closes them.
            settings: What the tiers were made with.
            others: What is kept of the same model in other cache types.
        """
        self._recall.attach(tiers, settings, others)

    def cache_report(self) -> CacheReport:
        """Where everything lies."""
        return self._recall.report()

    def prompt_tokens(self, messages: Tokens[Message]) -> tuple[int, ...]:
        """What a conversation's prompt begins with; from any thread.

        Raises:
            TemplateError: the chat template failed.
        """
        return chat_prompt(messages, self._template, self._backend.vocabulary).tokens

    def costs(self) -> CostProfile | None:
        """The measured costs of rounds, None while too little was measured."""
        return self._costs.profile()

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor and controller from the next round on."""
        self._wanted = settings

    def generate(self, request: GenerationRequest, cancellation: Cancellation) -> Iterator[Event]:
        """Make one reply; ends with `Finished`.

        A reply that is not wanted to its end is closed: the generator's `close()` ends it.

        Raises:
            EngineError: another reply of this session is not over, or the session is closed.
            ContextFullError: the prompt does not fit; nothing of the cache was lost but what the
                prompt does not share.
            TemplateError: the chat template failed.
            PresetError: sampling or speculation settings out of range.
            DecodeError: the backend failed.
        """
        watch = Stopwatch()
        self._check_is_free()
        if self._is_closed:
            raise EngineError("this session is closed: load the model again")
        self._is_replying = True
        self._backend.clear_abort()
        if self._draft_backend is not None:
            self._draft_backend.clear_abort()
        cancellation.attach(self._abort)
        try:
            yield from self._generate(request, cancellation, watch)
        finally:
            cancellation.detach()
            self._is_replying = False

    def keep(self) -> CacheReport:
        """Keep what the last reply computed, and give where everything lies.

        Apart from `generate`, so that the end of a reply waits for no copy of its state.
        """
        self._recall.keep()
        return self._recall.report()

    def close(self) -> None:
        """Free the backends and what a plugin holds.

        Raises:
            EngineError: a reply is not over; nothing was freed.
            PredictorError: the plugin raised; everything else was freed.
        """
        self._check_is_free()
        self._is_closed = True
        self._backend.close()
        if self._draft_backend is not None:
            self._draft_backend.close()
        self._registry.close()

    def _check_is_free(self) -> None:
        if self._is_replying:
            raise EngineError(
                "this session is making a reply, and its context serves one at a time: take the "
                "reply's events to the end or close() its generator first; a second session makes "
                "two replies at once"
            )

    def _generate(
        self, request: GenerationRequest, cancellation: Cancellation, watch: Stopwatch
    ) -> Iterator[Event]:
        reply = self._begun(request, watch)
        fault: EngineError | None = None
        try:
            row = yield from self._prefill.read(reply, self._wanted, cancellation)
            yield from self._first_token(reply, row)
            yield from self._rounds(reply, cancellation)
        except DecodeAborted:
            reply.ended = FinishReason.CANCELLED
        except EngineError as error:
            fault = error
        rest = reply.text.finish()
        if rest:
            yield TokensCommitted((), rest)
        yield self._cache_state(reply)
        if fault is not None:
            raise fault
        yield from self._measured_costs()
        yield self._finished(reply)

    def _begun(self, request: GenerationRequest, watch: Stopwatch) -> Reply:
        """A reply whose sequence holds as much of the prompt as lies anywhere."""
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        sampler = Sampler(request.sampling, seed)
        self._threads.begin(is_held=self._backend.rounds_by_threads and self._rounds_again(request))
        self._costs.use_threads(self._threads.n_decode)
        prompt = asked_prompt(
            request,
            self._template,
            self._backend.vocabulary,
            n_ctx=self._backend.n_ctx,
            n_ctx_train=self._n_ctx_train,
        )
        tokens = list(prompt.tokens)
        recalled = self._recall.begin(tokens[:-1], request.owner, may_shift=request.may_shift)
        self._sequence = recalled.sequence
        return Reply(
            request=request,
            sampler=sampler,
            tokens=tokens,
            n_prompt=len(tokens) - len(request.continues),
            text=self._text(request),
            stats=ReplyStats(n_prompt=len(tokens), n_reused=recalled.n_reused, prefill_s=0.0),
            watch=watch,
            recalled=recalled,
            note=_joined(prompt.note, recalled.requantised),
        )

    def _rounds_again(self, request: GenerationRequest) -> bool:
        """Whether the reply has to come out as it did before, rounding included."""
        return self._wanted.strict or request.seed is not None

    def _text(self, request: GenerationRequest) -> StreamingText:
        text = StreamingText((*request.stop, *self._stop_strings(request)))
        pieces = (self._backend.vocabulary.piece(token) for token in request.continues)
        text.resume(b"".join(pieces))
        return text

    def _stop_strings(self, request: GenerationRequest) -> tuple[str, ...]:
        return () if request.raw_prompt is not None else self._template.stop

    def _first_token(self, reply: Reply, row: FirstRow) -> Iterator[Event]:
        """Commit what the model says behind the prompt: a plain round without a forward."""
        reply.ended = reply.out_of_room(self._backend.n_ctx)
        if reply.ended is None:
            by = self._wanted.verification
            verdict = verify_draft((), row.logits, reply.sampler, reply.tokens, verification=by)
            committed = reply.commit(Draft(), verdict, self._backend.vocabulary)
            reply.stats.first_token_s = reply.watch.total()
            verify_s = row.elapsed_s + reply.watch.split()
            yield from self._tell(reply, Round(Draft(), verdict, committed, verify_s=verify_s))

    def _rounds(self, reply: Reply, cancellation: Cancellation) -> Iterator[Event]:
        """Decide, do, tell, until the reply has ended."""
        drafter: Drafter | None = None
        while reply.ended is None:
            cancellation.check()
            if drafter is None or drafter.settings is not self._wanted or drafter.fault:
                drafter, changed = self._switch(reply, drafter)
                yield changed
            reply.ended = reply.out_of_room(self._backend.n_ctx)
            if reply.ended is not None:
                return
            self._recall.make_room()
            yield from self._round(reply, drafter)
            if self._recall.is_due():
                self._recall.keep()
                reply.watch.split()
                yield TiersChanged(self._recall.report())
            if reply.stats.rounds % COSTS_EVERY == 0:
                yield from self._measured_costs()

    def _round(self, reply: Reply, drafter: Drafter) -> Iterator[Event]:
        waited_s, length = reply.watch.split(), drafter.length
        most_exact = self._most_exact(reply) if drafter.is_on else None
        draft = drafter.draft(self._n_draft_max(reply, most_exact))
        draft_s = reply.watch.split()
        verdict = self._verify(reply, drafter.settings, draft, is_exact=most_exact is not None)
        committed = reply.commit(draft, verdict, self._backend.vocabulary)
        self._sequence.crop(len(reply.tokens) - 1)
        verify_s = reply.watch.split()
        done = Round(draft, verdict, committed, waited_s, draft_s, verify_s)
        changed = self._learn(drafter, done)
        yield from self._tell(reply, done, length, drafter)
        if changed is not None:
            yield changed

    def _switch(self, reply: Reply, old: Drafter | None) -> tuple[Drafter, SpeculationChanged]:
        settings = self._wanted
        if old is not None and old.fault is not None:
            self._registry.give_up(old.settings, old.fault)
        controller = make_controller(settings, self._auto)
        engaged = self._registry.engage(
            settings,
            reply.request,
            reply.sampler,
            controller=controller,
            plain_step=self._plain_step,
        )
        drafter = Drafter(engaged.sources, controller, settings)
        drafter.reset(reply.tokens, n_plain_steps=self._plain_step.n_measured)
        reply.stats.predictor = settings.title_of(engaged.name)
        reply.stats.controller = settings.controller.value
        return drafter, SpeculationChanged(engaged.name, settings.controller, engaged.note)

    def _verify(
        self, reply: Reply, settings: SpeculationSettings, draft: Draft, *, is_exact: bool
    ) -> Verdict:
        """Decode the pending token and the draft in one batch, and compare."""
        n_rows = len(draft.tokens) + (settings.bonus_token or not draft.tokens)
        rows, n_held = (reply.tokens[-1], *draft.tokens)[:n_rows], len(self._sequence.tokens)
        forward = self._threads.step(
            lambda: self._sequence.verify(rows),
            lambda: self._sequence.crop(n_held),
            self._costs.rows.steps(n_rows),
        )
        verdict = verify_draft(
            draft.tokens,
            forward.logits,
            reply.sampler,
            reply.tokens,
            verification=settings.verification,
            laws=draft.laws,
            strict=settings.strict and not is_exact and n_rows > 1,
        )
        if not verdict.is_open:
            return verdict
        line = [*reply.tokens, *draft.tokens[: verdict.n_accepted]]
        self._sequence.crop(len(line) - 1)
        row = self._sequence.decode(line[-1]).logits[0]
        return settle(verdict, draft.tokens, row, reply.sampler, line)

    def _learn(self, drafter: Drafter, done: Round) -> ThreadsChanged | None:
        outcome, changed = done.outcome, None
        if outcome.verify_s is not None:
            n_rows = 1 + outcome.n_verified
            self._costs.add(n_rows, outcome.verify_s)
            changed = self._threads.stepped(outcome.verify_s, self._costs.rows.steps(n_rows))
        drafter.observe(outcome, [token.token for token in done.committed.tokens])
        self._costs.use_threads(self._threads.n_decode)
        return changed

    def _tell(
        self, reply: Reply, done: Round, length: int = 0, drafter: Drafter | None = None
    ) -> Iterator[Event]:
        """Count a round that was planned with `length` tokens, and tell it."""
        stats, step, n_verified = reply.stats, self._plain_step, len(done.draft.tokens)
        stats.saved.add(
            step,
            n_verified=n_verified,
            n_emitted=len(done.committed.tokens),
            draft_s=done.draft_s,
            elapsed_s=done.elapsed_s,
            switching=self._costs.rows.switching,
        )
        finished = RoundFinished(
            n_drafted=done.draft.n_drafted,
            n_verified=n_verified,
            n_examined=done.verdict.n_examined,
            n_accepted=done.verdict.n_accepted,
            n_emitted=len(done.committed.tokens),
            source=done.draft.source,
            length=max(length, n_verified),
            next_length=0 if drafter is None else drafter.length,
            reason=FIRST_TOKEN if drafter is None else drafter.reason,
            draft_s=done.draft_s,
            verify_s=done.verify_s,
            elapsed_s=done.elapsed_s,
            plain_step_s=step.seconds,
            plain_spread=step.spread,
            saved_s=stats.saved.seconds,
            saved_error_s=stats.saved.error_s,
            verdicts=tuple(index < done.verdict.n_accepted for index in range(n_verified)),
            n_near_ties=done.verdict.n_near_ties,
            is_redecoded=done.verdict.is_redecoded,
        )
        stats.add(finished)
        yield done.committed
        yield finished
        yield self._cache_state(reply)

    def _most_exact(self, reply: Reply) -> int | None:
        """The longest draft that rounds as plain steps where `strict` asks for it, else None.

        What measuring takes is counted to the prompt: no round caused it.
        """
        is_asked = self._wanted.strict and compares(self._wanted.verification, reply.sampler)
        if not is_asked or not self._backend.can_crop:
            return None
        n_held = len(self._sequence.tokens)
        n_rows = min(self._backend.n_rows, self._backend.n_ctx - n_held)
        self._exactness.measure(self._sequence, reply.tokens, n_rows)
        reply.stats.prefill_s += reply.watch.split()
        return self._exactness.most_drafted(n_held)

    def _n_draft_max(self, reply: Reply, most_exact: int | None) -> int:
        """The room of a draft: rows of logits, cells, and tokens that may still be emitted."""
        n_max = min(self._backend.n_rows - 1, self._backend.n_ctx - len(reply.tokens))
        if most_exact is not None:
            n_max = min(n_max, most_exact)
        if reply.request.max_tokens is not None:
            n_max = min(n_max, reply.request.max_tokens - reply.n_new - 1)
        return n_max

    def _cache_state(self, reply: Reply) -> CacheChanged:
        return CacheChanged(
            n_used=len(self._sequence.tokens),
            n_cells=self._backend.n_ctx,
            kv_bytes=self._backend.kv_bytes,
            n_reused=reply.stats.n_reused,
            n_prompt=reply.stats.n_prompt,
            n_hot=reply.recalled.n_hot,
            n_warm=reply.recalled.n_warm,
            n_cold=reply.recalled.n_cold,
            restore_s=reply.recalled.restore_s,
        )

    def _measured_costs(self) -> Iterator[CostsMeasured]:
        """What was measured; nothing before a batch was compared with a plain step."""
        rows, plain_s = self._costs.rows, self._costs.plain.seconds
        if plain_s is not None and len(rows.measured()) > 1:
            yield CostsMeasured(rows.measured(), plain_s, rows.all_steps)

    def _finished(self, reply: Reply) -> Finished:
        return Finished(
            reason=reply.ended or FinishReason.CANCELLED,
            text=reply.text.text,
            token_ids=reply.generated,
            vocabulary_id=self._backend.vocabulary.identifier,
            seed=reply.sampler.seed,
            stats=reply.stats.summary(self._plain_step),
            n_used=len(self._sequence.tokens),
            n_cells=self._backend.n_ctx,
        )

    def _abort(self) -> None:
        self._backend.abort()
        if self._draft_backend is not None:
            self._draft_backend.abort()


def _joined(note: str | None, requantised: Requantised | None) -> str | None:
    """What there is to say of a prompt's reuse."""
    said = [text for text in (note, requantised and requantised.sentence) if text]
    return "; ".join(said) or None
