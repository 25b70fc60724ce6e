"""A loaded model that generates one or several replies at once."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from functools import partial

from engine.backends.base import Backend
from engine.cache.prefix_cache import PrefixCache
from engine.cache.recall import Recall
from engine.cache.report import CacheReport, CacheSettings
from engine.configuration import SpeculationSettings
from engine.errors import EngineError, IncompatiblePairError
from engine.events import Event
from engine.generation.loop import ReplyLoop, Shared
from engine.generation.prefill import Prefill
from engine.generation.prompt import chat_prompt, text_tokens
from engine.generation.reasoning import Reasoning
from engine.generation.reuse import LastReplies
from engine.generation.scheduler import Generation, Scheduler
from engine.generation.threads import Threads
from engine.grammar.mask import Grammars
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.speculation.costs import CostProfile, Costs
from engine.speculation.pairs import check_pair
from engine.speculation.predictor_pool import PredictorPool
from engine.speculation.predictors.base import Predictor


class Session:
    """A backend, an optional draft backend, and settings that may change between rounds.

    It generates up to one reply per sequence of the context, all from one thread, and batches
    their steps. `Cancellation` may be used from any thread.

    Args:
        backend: The target.
        template: Renders messages to prompts.
        speculation: Initial settings; see `set_speculation`.
        draft_backend: The draft model.
        costs: Costs of an earlier run.
        threads: Threads of the backends; None leaves them unchanged.
        custom_predictor: The predictor `custom`; the caller closes it.

    Raises:
        IncompatiblePairError: draft and target have different vocabularies.
    """

    def __init__(
        self,
        backend: Backend,
        template: ChatTemplate,
        speculation: SpeculationSettings,
        *,
        draft_backend: Backend | None = None,
        costs: CostProfile | None = None,
        threads: Threads | None = None,
        custom_predictor: Predictor | None = None,
    ) -> None:
        if draft_backend is not None:
            if not backend.can_crop:
                raise IncompatiblePairError(
                    "the target is a recurrent model, whose state cannot be rolled back after a "
                    "rejected token: load it without a draft model"
                )
            check_pair(backend.vocabulary, draft_backend.vocabulary)
        self._backends = (backend,) if draft_backend is None else (backend, draft_backend)
        self._recall = recall = Recall(backend)
        measured = Costs(costs)
        threads = Threads((backend,), follows=(False, False)) if threads is None else threads
        measured.use_threads(threads.n_decode)
        self._scheduler = scheduler = Scheduler(self._backends, recall)
        reasoning = Reasoning.found(template, partial(_is_token, backend))
        self._shared = Shared(
            backend=backend,
            template=template,
            wanted=speculation,
            threads=threads,
            recall=recall,
            costs=measured,
            predictors=PredictorPool(
                backend, measured, draft=draft_backend, custom=custom_predictor
            ),
            scheduler=scheduler,
            prefill=Prefill(backend, recall, measured, threads, scheduler),
            grammars=Grammars(backend.vocabulary),
            last_replies=LastReplies(backend.vocabulary),
            reasoning=reasoning,
            marker_tokens=_marker_tokens(reasoning, backend),
        )
        self._is_closed = False

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the available predictors."""
        return self._shared.predictors.first.names

    def attach_cache(self, tiers: PrefixCache, settings: CacheSettings) -> None:
        """Restore prompts from these tiers, and save the states of replies in them.

        Args:
            tiers: Cache tiers for this model, its settings and build; the caller closes them.
            settings: The tiers' settings.
        """
        self._recall.attach(tiers, settings)

    def cache_report(self) -> CacheReport:
        """Use and entries of all cache tiers."""
        return self._recall.report()

    def prompt_tokens(self, messages: Tokens[Message]) -> tuple[int, ...]:
        """The prompt tokens of a conversation; callable from any thread.

        Raises:
            TemplateError: the chat template failed.
        """
        shared, vocabulary = self._shared, self._shared.backend.vocabulary
        return chat_prompt(messages, shared.template, vocabulary, shared.reasoning).tokens

    def count_tokens(self, text: str) -> int:
        """Tokens of a question's text without the template's; callable from any thread.

        Raises:
            ImageError: it has an image, and there is no projector or that refuses it.
        """
        return len(text_tokens(text, self._shared.backend.vocabulary))

    def costs(self) -> CostProfile | None:
        """The measured costs of rounds; None if too few were measured."""
        return self._shared.costs.profile()

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Change the speculation settings from the next round on."""
        self._shared.wanted = settings

    def generate(self, request: GenerationRequest, cancellation: Cancellation) -> Iterator[Event]:
        """Generate a reply; the last event is `Finished`.

        Several of these generators may be consumed alternately; each step computes for all replies
        without pending events. Close a generator to end its reply early.

        Raises:
            EngineError: all sequences of the context have running replies, or the session is
                closed.
            ContextFullError: the prompt does not fit; its cached prefix is retained.
            TemplateError: the chat template failed.
            PresetError: sampling or speculation settings out of range.
            GrammarError: the schema or grammar is invalid, or the continued reply does not match.
            AdapterError: an adapter is missing, or not of this model.
            DecodeError: the backend failed.
        """
        n_sequences = self._shared.backend.n_sequences
        if self._scheduler.n_replies >= n_sequences:
            raise EngineError(
                f"all {n_sequences} slots of this session are generating: read a reply to its "
                "end, close its generator, or load the model with more slots"
            )
        generation = self.begin(request, cancellation)
        try:
            events, step = generation.events, self._scheduler.step
            while not generation.is_over:
                while events:
                    yield events.popleft()
                step()
            yield from generation.take()
            if generation.fault is not None:
                raise generation.fault
        finally:
            self._scheduler.end(generation)

    def preload(
        self, messages: Tokens[Message], cancellation: Cancellation, *, owner: str = ""
    ) -> Iterator[Event]:
        """Prefill a chat before its next question; the last event is `Finished`.

        If cancelled, the tokens computed so far are reused too. Raises as `generate` does.
        """
        return self.generate(GenerationRequest.preload(tuple(messages), owner), cancellation)

    def begin(self, request: GenerationRequest, cancellation: Cancellation) -> Generation:
        """Queue a reply that `step` generates as soon as a sequence is free.

        Raises:
            EngineError: the session is closed.
        """
        if self._is_closed:
            raise EngineError("this session is closed: load the model again")
        return self._scheduler.add(ReplyLoop(self._shared, request, cancellation), cancellation)

    def step(self) -> bool:
        """Advance every reply without pending events; False if there was nothing to do.

        Results are in `Generation.events` and `Generation.fault`.
        """
        return self._scheduler.step()

    def keep(self) -> CacheReport:
        """Save the states of ended replies; return the cache report.

        Separate from `generate`, so that the end of a reply does not wait for saving its state.
        """
        self._recall.save_ended()
        return self._recall.report()

    def close(self) -> None:
        """Free the backends.

        Raises:
            EngineError: a reply is running; nothing was freed.
        """
        if self._scheduler.n_replies:
            raise EngineError(
                "this session is generating a reply: read all of its events, or close its "
                "generator first"
            )
        self._is_closed = True
        for backend in self._backends:
            backend.close()


def _is_token(backend: Backend, text: str) -> bool:
    try:
        tokens = backend.vocabulary.tokenize(text, add_special=False, parse_special=True)
    except EngineError:
        return False  # the target has no tokenizer
    return len(tokens) == 1


def _marker_tokens(reasoning: Reasoning | None, backend: Backend) -> frozenset[int]:
    """The control tokens of the markers, which have no text unless `special`."""
    if reasoning is None:
        return frozenset()
    vocabulary, markers = backend.vocabulary, reasoning.markers
    return frozenset(
        token
        for text in (markers.start, markers.end)
        for token in vocabulary.tokenize(text, add_special=False, parse_special=True)
        if not vocabulary.piece(token)
    )
