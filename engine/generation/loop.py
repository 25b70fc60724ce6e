"""The loop of one reply: prefill, then rounds of draft, verify, accept and crop.

Committed tokens are `tokens`. The last one is pending: the sequence has decoded exactly
`tokens[:-1]`. A round decodes the pending token and the draft in one batch, accepts the tokens that
the target would have chosen, adds the target's next token, and crops the cache to the invariant.
The loop yields events and the steps to compute (`compute_step`), so that a scheduler can batch the
steps of several replies.
"""

import secrets
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from engine.backends.base import Backend, Step
from engine.cache.recall import Recall
from engine.clock import Stopwatch
from engine.configuration import Adapter, SpeculationSettings
from engine.errors import DecodeAborted, EngineError, LogitsError, TemplateError
from engine.events import (
    CacheChanged,
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    RoundFinished,
    SpeculationChanged,
    ThreadsChanged,
    TiersChanged,
    TokensCommitted,
)
from engine.generation.prefill import FirstRow, Prefill
from engine.generation.prompt import (
    Prompt,
    asked_prompt,
    checked_tokens,
    lasting_prompt,
    may_think,
)
from engine.generation.reasoning import Reasoning
from engine.generation.reply import Reply, StreamingText
from engine.generation.reuse import LastReplies
from engine.generation.scheduler import Computed, Item, Scheduler, compute_step
from engine.generation.thinking import ThinkingWatch
from engine.generation.threads import Threads
from engine.grammar.mask import Grammars
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest
from engine.sampling import Sampler
from engine.speculation.costs import MAX_ROWS, Costs
from engine.speculation.drafter import Draft, Drafter
from engine.speculation.predictor_pool import PredictorPool, PredictorSet
from engine.speculation.verify import Verdict, verify_draft

SEED_BITS = 63
MIN_COPIED = 200
"""Characters of a common start for which a reply waits until another has computed it."""
FIRST_TOKEN = "the prefill produces the first token"

Events = Generator[Item, Computed | None, None]


@dataclass(slots=True)
class Shared:
    """Objects shared by all replies of a session."""

    backend: Backend
    template: ChatTemplate
    wanted: SpeculationSettings
    """Speculation settings of requests without their own; may change between rounds."""
    threads: Threads
    recall: Recall
    costs: Costs
    predictors: PredictorPool
    scheduler: Scheduler
    prefill: Prefill
    grammars: Grammars
    last_replies: LastReplies
    reasoning: Reasoning | None
    """The target's thinking format; None if it has none."""
    marker_tokens: frozenset[int]
    """Control tokens that separate thinking from answers."""


class ReplyLoop:
    """Generates one reply, from its request to `Finished`."""

    def __init__(
        self, shared: Shared, request: GenerationRequest, cancellation: Cancellation
    ) -> None:
        self._shared = shared
        self._request = request
        self._cancellation = cancellation
        self._backend, self._recall = shared.backend, shared.recall
        self._watch = Stopwatch()
        self._is_reading = True
        """Whether the prompt is not computed yet."""

    def can_copy(self, other: "ReplyLoop") -> bool:
        """Whether most of another's prompt, which is being computed, also begins this one."""
        mine, theirs = self._request.messages, other._request.messages
        is_alike = self._backend.can_slice and self.adapters == other.adapters
        if not (is_alike and other._is_reading):
            return False
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False))
        n_shared = sum(len(message.content) for message, _ in shared)
        return n_shared >= max(MIN_COPIED, sum(len(each.content) for each in theirs) / 2)

    @property
    def adapters(self) -> tuple[Adapter, ...] | None:
        """Adapters of the request; None for those the model was loaded with."""
        return self._request.adapters

    @property
    def _wanted(self) -> SpeculationSettings:
        return self._request.speculation or self._shared.wanted

    def run(self) -> Events:
        """Yield events and steps to compute until the reply ends.

        Between a step and the next item it calls no backend, because other replies' logits are
        still in use.

        Raises:
            EngineError: the reply failed.
        """
        prompt = self._prompt()
        if self._cancellation.is_cancelled:
            yield self._never_begun(prompt.opens)
            return
        predictors = self._shared.predictors.acquire(self._request.owner)
        try:
            reply = self._begun(prompt)
            try:
                yield from self._run(reply, prompt.opens, predictors)
            finally:
                self._recall.end(reply.recalled.slot)
                self._shared.last_replies.store(
                    self._request, reply.tokens, reply.n_prompt, reply.text.text
                )
        finally:
            self._shared.predictors.release(predictors)

    def _run(self, reply: Reply, opens: str, predictors: PredictorSet) -> Events:
        fault: EngineError | None = None
        try:
            row = yield from self._shared.prefill.read(reply, self._cancellation)
            self._is_reading = False
            reply.thinking.update(reply.text.text, 0)
            if opens and not self._request.continues:
                yield TokensCommitted((), opens)
            yield from self._first_token(reply, row)
            yield from self._close_thinking(reply, None)
            yield from self._rounds(reply, predictors)
        except DecodeAborted:
            reply.ended = FinishReason.CANCELLED
        except EngineError as error:
            fault = error
            if isinstance(error, LogitsError):
                self._recall.discard(reply.recalled.slot)
        # An aborted step leaves part of its draft.
        self._recall.crop(reply.recalled.slot, len(reply.tokens) - 1)
        if rest := reply.text.finish():
            yield TokensCommitted((), rest)
        yield self._cache_state(reply)
        if fault is not None:
            raise fault
        yield Finished(
            reason=reply.ended or FinishReason.CANCELLED,
            text=reply.text.text,
            token_ids=reply.generated_tokens,
            vocabulary_id=self._backend.vocabulary.identifier,
            seed=reply.sampler.seed,
            stats=reply.totals,
            n_used=len(reply.sequence.tokens),
            n_cells=self._backend.n_ctx,
            fits_grammar=reply.fits_grammar,
        )

    # --- before the prefill ---

    def _prompt(self) -> Prompt:
        shared = self._shared
        prompt = asked_prompt(
            self._request,
            shared.template,
            self._backend.vocabulary,
            shared.reasoning,
            n_ctx=self._backend.n_ctx,
        )
        self._request = replace(self._request, continues=prompt.continues)
        return prompt

    def _never_begun(self, opens: str) -> Finished:
        """The result of a reply that was cancelled while waiting for a sequence."""
        continues = self._request.continues
        return Finished(
            reason=FinishReason.CANCELLED,
            text=self._text(opens).text if continues else "",
            token_ids=continues,
            vocabulary_id=self._backend.vocabulary.identifier,
            seed=self._seed(),
            stats=GenerationStats(),
            n_cells=self._backend.n_ctx,
        )

    def _begun(self, prompt: Prompt) -> Reply:
        """A new reply whose sequence holds the longest cached prefix of the prompt."""
        request, tokens, shared = self._request, list(prompt.tokens), self._shared
        sampling = request.sampling
        checked_tokens(sampling.stop_tokens, self._backend.vocabulary, "stop token")
        mask = shared.grammars.mask_of(request, tokens)
        sampler = Sampler(sampling, self._seed(), mask=mask)
        shared.threads.begin()
        shared.costs.use_threads(shared.threads.n_decode)
        recalled = self._recall.begin(tokens[:-1], request.owner, adapters=request.adapters)
        reasoning = shared.reasoning if request.has_template else None
        return Reply(
            request=request,
            sampler=sampler,
            tokens=tokens,
            n_prompt=len(tokens) - len(request.continues),
            text=self._text(prompt.opens),
            stats=GenerationStats(n_prompt=len(tokens), n_reused=recalled.n_reused),
            watch=self._watch,
            recalled=recalled,
            found=shared.last_replies.found(request, prompt, recalled),
            thinking=ThinkingWatch(reasoning, sampling.thinking_budget, self._watch.total),
            marker_tokens=shared.marker_tokens,
            n_lasting=self._n_lasting(),
        )

    def _seed(self) -> int:
        return secrets.randbits(SEED_BITS) if self._request.seed is None else self._request.seed

    def _text(self, opens: str) -> StreamingText:
        """The text of the reply, which begins with that of a continued one.

        A given text stays as it is, though its tokens may stand for another one: not every
        vocabulary has every character.
        """
        request, shared, vocabulary = self._request, self._shared, self._backend.vocabulary
        text = StreamingText((*request.stop, *(shared.template.stop * request.has_template)))
        if request.continues_text:
            start = [request.continues_text.removeprefix(opens).encode()]
        else:
            start = [
                vocabulary.piece(token, special=token in shared.marker_tokens)
                for token in request.continues
            ]
        text.resume(b"".join([opens.encode(), *start]))
        return text

    def _n_lasting(self) -> int:
        """Length of the prefix shared with the next turn's prompt, if a state is to be saved there.

        Templates may open the thinking in this turn and omit it from earlier turns. A whole state
        cannot be cropped to the shared prefix later. 0 if states can be sliced.
        """
        request, shared = self._request, self._shared
        if shared.reasoning is None or self._backend.can_slice or not request.messages:
            return 0
        vocabulary, thinks = self._backend.vocabulary, may_think(request)
        try:
            lasting = lasting_prompt(
                request.messages, shared.template, vocabulary, shared.reasoning, thinks=thinks
            )
        except TemplateError:
            return 0  # the template accepts no turn after this one
        return len(lasting.tokens)

    # --- rounds ---

    def _first_token(self, reply: Reply, row: FirstRow) -> Iterator[Event]:
        """Commit the first token from the prefill's logits: a plain round without a decode."""
        reply.ended = reply.limit_reached(self._backend.n_ctx)
        if reply.ended is not None:
            return
        by = self._wanted.verification
        verdict = verify_draft((), row.logits, reply.sampler, reply.tokens, verification=by)
        committed = reply.commit(Draft(), verdict, self._backend.vocabulary)
        first_token_s = reply.watch.total()
        times = (0.0, 0.0, row.elapsed_s + reply.watch.split())
        plain, n_emitted = self._shared.costs.plain, len(committed.tokens)
        done = reply.record_round(Draft(), verdict, n_emitted, times, plain, is_alone=row.is_alone)
        done = replace(done, reason=FIRST_TOKEN, first_token_s=first_token_s)
        yield from self._report(reply, committed, done)

    def _rounds(self, reply: Reply, predictors: PredictorSet) -> Events:
        drafter: Drafter | None = None
        note: str | None = None
        slot = reply.recalled.slot
        while reply.ended is None:
            self._cancellation.check()
            is_new = drafter is None or drafter.settings is not self._wanted
            if drafter is None or is_new:
                drafter = predictors.engage(self._wanted, reply.sampler)
                drafter.reset(reply.tokens)
            if is_new or drafter.note != note:
                note, predictor = drafter.note, drafter.predictor
                controller = drafter.settings.controller
                reply.stats = replace(
                    reply.stats, predictor=predictor.value, controller=controller.value
                )
                yield SpeculationChanged(predictor, controller, note)
            reply.ended = reply.limit_reached(self._backend.n_ctx)
            if reply.ended is not None:
                return
            yield from self._round(reply, drafter)
            yield from self._close_thinking(reply, drafter)
            if self._recall.is_due(slot):
                self._recall.save(slot)
                reply.watch.split()
                yield TiersChanged(self._recall.report())

    def _round(self, reply: Reply, drafter: Drafter) -> Events:
        waited_s, length, costs = reply.watch.split(), drafter.length, self._shared.costs
        yield from self._shared.prefill.restore(reply, self._cancellation)
        n_max = min(self._shared.scheduler.n_rows, reply.n_left(self._backend.n_ctx)) - 1
        if (n_thinking := reply.thinking.n_left()) is not None:
            n_max = min(n_max, max(n_thinking - 1, 0))
        draft = drafter.draft(n_max)
        draft_s = reply.watch.split()
        verdict, given = yield from self._verify(reply, drafter.settings, draft)
        committed = reply.commit(draft, verdict, self._backend.vocabulary)
        self._recall.crop(reply.recalled.slot, len(reply.tokens) - 1)
        times = (waited_s, draft_s, reply.watch.split())
        changed = self._timed(len(draft.tokens), times[-1], given)
        done = reply.record_round(
            draft, verdict, len(committed.tokens), times, costs.plain, is_alone=given.is_alone
        )
        drafter.observe(done, [token.token for token in committed.tokens])
        costs.use_threads(self._shared.threads.n_decode)
        done = replace(
            done,
            length=max(length, done.n_verified),
            next_length=drafter.length,
            reason=drafter.reason,
        )
        yield from self._report(reply, committed, done)
        if changed is not None:
            yield changed

    def _verify(
        self, reply: Reply, settings: SpeculationSettings, draft: Draft
    ) -> Generator[Step, Computed | None, tuple[Verdict, Computed]]:
        """Decode the pending token and the draft in one batch, and compare."""
        n_rows = len(draft.tokens) + (settings.bonus_token or not draft.tokens)
        rows = (reply.tokens[-1], *draft.tokens)[:n_rows]
        given = yield from compute_step(Step(reply.sequence, rows))
        verdict = verify_draft(
            draft.tokens,
            given.logits,
            reply.sampler,
            reply.tokens,
            verification=settings.verification,
            distributions=draft.distributions,
        )
        return verdict, given

    def _timed(self, n_verified: int, verify_s: float, given: Computed) -> ThreadsChanged | None:
        """Record the time of a round, or of a batch shared with other replies."""
        rows, threads = self._shared.costs.rows, self._shared.threads
        if given.is_alone:
            rows.add(1 + n_verified, verify_s)
        elif 0 < given.n_shared <= MAX_ROWS:
            rows.add(given.n_shared, given.elapsed_s)
        changed = threads.follow()
        threads.use_for_steps()
        return changed

    def _report(
        self, reply: Reply, committed: TokensCommitted, done: RoundFinished
    ) -> Iterator[Event]:
        reply.rounds.append(done)
        yield committed
        if (progress := reply.thinking.update(reply.text.text, done.n_emitted)) is not None:
            yield progress
        yield done
        yield self._cache_state(reply)

    def _close_thinking(self, reply: Reply, drafter: Drafter | None) -> Events:
        """Commit the end marker of the thinking if its budget is used up."""
        closing, vocabulary = reply.thinking.closing, self._backend.vocabulary
        if closing is None or reply.ended is not None:
            return
        ids = vocabulary.tokenize(closing, add_special=False, parse_special=True)
        if len(ids) > reply.n_left(self._backend.n_ctx):
            return
        yield reply.add(ids, vocabulary)
        yield reply.thinking.close(len(ids))
        yield from self._shared.prefill.restore(reply, self._cancellation)
        reply.watch.split()
        if drafter is not None:
            drafter.reset(reply.tokens)

    def _cache_state(self, reply: Reply) -> CacheChanged:
        n_used, backend = len(reply.sequence.tokens), self._backend
        return CacheChanged(n_used, backend.n_ctx, backend.kv_bytes)
