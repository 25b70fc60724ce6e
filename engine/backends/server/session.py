"""A session whose replies come from a server."""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from engine.backends.server.counters import Counters
from engine.backends.server.facts import ServerFacts, ask_facts
from engine.backends.server.http import (
    Http,
    ServerSilentError,
    ServerUnreachableError,
    TimeLimits,
)
from engine.backends.server.llama_server import LlamaServer
from engine.backends.server.openai import OpenAI
from engine.backends.server.served_reply import MAX_TEXT, ServedReply
from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.report import CacheReport
from engine.clock import Stopwatch
from engine.configuration import Configuration, SpeculationSettings
from engine.errors import AdapterError, EngineError, ServerError
from engine.events import (
    Event,
    FinishReason,
    Loaded,
    ServerFigure,
    ServerFigures,
    SpeculationChanged,
    Waiting,
)
from engine.images import ImageError, images_in, parts_of
from engine.model.ollama import model_title
from engine.requests import Cancellation, GenerationRequest
from engine.servers import goes_unencrypted

LOOK_S = 0.7
"""Interval of requests for a server's counters."""
LOOK_LIMITS = TimeLimits(answer_s=5.0)
IDLE_S = 60.0
"""Seconds after the last reply at which polling stops, so that the server can sleep."""
STEP_S = 0.05
"""How long a step waits for events of replies, and so the delay of a stop."""
SEED_BITS = 31
"""Bits of a seed that every server supports."""
NO_SPECULATION = "drafting is fixed when the server is started: set the server's draft options"


@dataclass(slots=True)
class ServedGeneration:
    """One reply: its events, and how it ended."""

    reply: ServedReply
    cancellation: Cancellation
    events: deque[Event] = field(default_factory=deque)
    """Events that were not consumed yet."""
    fault: EngineError | None = None
    """The error that ended the reply."""
    is_over: bool = False
    received: deque[Event] = field(default_factory=deque)
    """Events from the reading thread, which a step records."""
    has_ended: bool = False
    """Whether the thread has ended; the next step ends the reply."""

    def take(self) -> Iterator[Event]:
        """Consume the pending events."""
        while self.events:
            yield self.events.popleft()

    def end(self, reason: FinishReason) -> None:
        """End the reply after its received events."""
        self.received.append(self.reply.finish(reason))
        self.has_ended = True


class ServerSession:
    """Any number of parallel replies of one server's model; used from one thread.

    A separate thread reads each reply.

    Args:
        configuration: Address of the server and name of the model.
        limits: Time limits.
        emit: Called from any thread with events that belong to no reply.

    Raises:
        ServerError: the server cannot be reached, is not a model server, or lacks the model.
    """

    def __init__(
        self,
        configuration: Configuration,
        limits: TimeLimits | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        assert configuration.server is not None
        watch, is_trusted = Stopwatch(), configuration.is_server_trusted
        self._wanted = str(configuration.model_path) if configuration.model_path.name else None
        self._emit = emit or (lambda _: None)
        self._http = Http(
            configuration.server,
            limits or TimeLimits(),
            lambda text: self._emit(Waiting(text)),
            is_trusted=is_trusted,
        )
        self.facts = ask_facts(self._http, self._wanted)
        """Detected facts about the server."""
        self._program: LlamaServer | OpenAI = (LlamaServer if self.facts.has_ids else OpenAI)(
            self._http, self.facts
        )
        self._counters = Counters(
            Http(configuration.server, LOOK_LIMITS, is_trusted=is_trusted), self.facts
        )
        self._is_asked = threading.Event()
        """Whether a reply was requested since the last look at the counters."""
        self._is_closed = False
        self._changed = threading.Condition()
        """Guards the events of running replies."""
        self._running: list[ServedGeneration] = []
        self._was_lost = False
        """Whether the connection broke since the last detection."""
        self.loaded = _loaded(configuration, self.facts, self._http, watch)

    def look(self) -> ServerFigures:
        """Request the server's counters."""
        return self._counters.figures()

    def watch(self) -> None:
        """Emit the server's counters from a thread, now and after changes."""
        self._emit(self._speculation())
        start_thread(self._watch, name="server-counters", pauses_s=PAUSES_S)

    def begin(self, request: GenerationRequest, cancellation: Cancellation) -> ServedGeneration:
        """Start a reply.

        Raises:
            EngineError: the request has settings that no server supports.
        """
        if request.adapters is not None:
            raise AdapterError("only the server can load adapters: start the server with --lora")
        asked = (each.content for each in request.messages if each.role == "user")
        images = [image for content in asked for image in images_in(content)]
        if images and self.loaded.blindness:
            raise ImageError(f"{images[0].name} is an image, but {self.loaded.blindness}")
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        reply = ServedReply(
            request,
            seed % (1 << SEED_BITS),
            self.facts.vocabulary_id,
            self.facts.program,
            self.facts.n_ctx,
            request.continues_text,
        )
        generation = ServedGeneration(reply, cancellation)
        self._running.append(generation)
        self._is_asked.set()
        start_thread(
            partial(self._read, generation),
            name="reply",
            on_fault=partial(self._fail_after, generation),
        )
        return generation

    def step(self) -> bool:
        """Wait briefly for events of replies; return whether any reply runs."""
        if not self._running:
            return False
        with self._changed:
            self._changed.wait_for(
                lambda: any(each.received or each.has_ended for each in self._running), STEP_S
            )
            for generation in self._running:
                if generation.cancellation.is_cancelled and not generation.has_ended:
                    generation.end(FinishReason.CANCELLED)
                generation.events.extend(generation.received)
                generation.received.clear()
                generation.is_over = generation.has_ended
            self._running = [each for each in self._running if not each.is_over]
        return True

    def count_tokens(self, text: str) -> int | None:
        """Count the tokens of a text without images; None if the server cannot. Thread-safe."""
        if not self.facts.has_ids:
            return None
        try:
            plain = "".join(part for part in parts_of(text) if isinstance(part, str))
            tokens = self._http.post_json("/tokenize", {"content": plain}).get("tokens")
        except EngineError:
            return None  # the replies report the error
        return len(tokens) if isinstance(tokens, list) else None

    def keep(self) -> CacheReport:
        """An empty report: the server manages its cache."""
        return CacheReport()

    def costs(self) -> None:
        """None: batch costs of a server are not measured."""

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Emit that the server's own speculation stays unchanged."""
        del settings
        self._emit(self._speculation(NO_SPECULATION))

    def close(self) -> None:
        """Close all connections."""
        for generation in self._running:
            generation.cancellation.cancel()
        self._is_closed = True
        self._is_asked.set()

    def _speculation(self, note: str | None = None) -> SpeculationChanged:
        match self.facts.speculates:
            case True:
                return SpeculationChanged(self.facts.program, "the server's rule", note)
            case False:
                return SpeculationChanged("off", "", note)
            case None:
                return SpeculationChanged("drafts unknown", "", note)

    # --- the server's counters, in a thread ---

    def _watch(self) -> None:
        last, idle_since = ServerFigures(()), time.monotonic()
        while not self._is_closed:
            self._is_asked.clear()
            figures = self._counters.figures()
            if figures != last:
                self._emit(figures)
                last = figures
            if not (self.facts.has_slots or self.facts.has_metrics):
                return
            if self._running or self._counters.is_busy:
                idle_since = time.monotonic()
            if time.monotonic() - idle_since < IDLE_S:
                time.sleep(LOOK_S)
                continue
            when = f"figures as of {time.strftime('%H:%M:%S')}; updated with the next reply"
            last = ServerFigures((*figures.figures, ServerFigure("throughput", when)))
            self._emit(last)
            self._is_asked.wait()
            idle_since = time.monotonic()

    # --- one reply, in its own thread ---

    def _read(self, generation: ServedGeneration) -> None:
        """Read a reply; request it again if the connection breaks before the first token."""
        pauses = iter(self._http.limits.pauses_s)
        while True:
            try:
                self._read_once(generation)
            except ServerUnreachableError as error:
                self._was_lost = True
                pause = next(pauses, None)
                is_final = generation.reply.has_begun or generation.cancellation.is_cancelled
                if pause is None or is_final:
                    self._fail(generation, error)
                    return
                time.sleep(pause)
            except EngineError as error:
                self._was_lost |= isinstance(error, ServerSilentError)
                self._fail(generation, error)
                return
            else:
                return

    def _read_once(self, generation: ServedGeneration) -> None:
        reply, cancellation = generation.reply, generation.cancellation
        if reply.request.reads_only and not self.facts.has_ids:
            reply.reason = FinishReason.LENGTH
        else:
            self._detect_again()
            self._follow(generation)
        with self._changed:
            if not generation.has_ended:
                stopped = FinishReason.CANCELLED if cancellation.is_cancelled else FinishReason.END
                generation.end(reply.reason or stopped)
            self._changed.notify()

    def _follow(self, generation: ServedGeneration) -> None:
        """Pass on the events of a reply.

        Raises:
            EngineError: the server fails, or ends the stream before the reply.
        """
        reply = generation.reply
        with closing(self._program.events(reply, generation.cancellation)) as events:
            for event in events:
                with self._changed:
                    if generation.has_ended:
                        return
                    # Notify once for all events of a read: each wake-up costs CPU time.
                    if not generation.received:
                        self._changed.notify()
                    generation.received.append(event)
                    reply.record(event)
                if reply.n_text > MAX_TEXT:
                    raise ServerError(
                        f"{self._http.name} sent {reply.n_text:,} characters without ending "
                        "the reply, so kvchat stopped the reply"
                    )
                if reply.reason is FinishReason.STOP_TOKEN:
                    return
        if reply.reason is None and not generation.cancellation.is_cancelled:
            raise ServerUnreachableError(
                f"{self._http.name} closed the connection before the reply was complete: see "
                "its log; the text so far is saved"
            )

    def _detect_again(self) -> None:
        """Check that a server that was unreachable serves the same model.

        Raises:
            ServerError: it serves another one, or is still unreachable.
        """
        if not self._was_lost:
            return
        facts = ask_facts(self._http, self._wanted)
        if facts.vocabulary_id != self.facts.vocabulary_id:
            raise ServerError(
                f"{self._http.name} now serves {facts.model} instead of {self.facts.model}: "
                "restart the engine (ctrl+r) to use the new model"
            )
        self._was_lost = False

    def _fail(self, generation: ServedGeneration, error: EngineError) -> None:
        with self._changed:
            if generation.has_ended:
                return
            if generation.cancellation.is_cancelled:
                generation.end(FinishReason.CANCELLED)
            else:
                generation.fault, generation.has_ended = error, True
            self._changed.notify()

    def _fail_after(self, generation: ServedGeneration, fault: ThreadFault) -> None:
        self._fail(generation, ServerError(f"kvchat could not read the server's answer: {fault}"))


def _loaded(
    configuration: Configuration, facts: ServerFacts, http: Http, watch: Stopwatch
) -> Loaded:
    named = Configuration.at_server(
        http.url,
        facts.model,
        configuration.sampling,
        is_trusted=configuration.is_server_trusted,
    )
    no_images = (
        f"{http.name} does not report image support for its model: start the server with "
        "a projector (--mmproj), or choose another model"
    )
    return Loaded(
        model_name=facts.model,
        file_type=facts.file_type,
        n_vocab=facts.n_vocab,
        n_ctx=facts.n_ctx,
        n_ctx_train=facts.n_ctx_train,
        can_crop=True,
        has_chat_template=facts.has_template,
        vocabulary_id=facts.vocabulary_id,
        configuration=named,
        predictors=(),
        notes=_notes(named, facts, http),
        elapsed_s=watch.total(),
        blindness="" if facts.sees_images else no_images,
    )


def _notes(named: Configuration, facts: ServerFacts, http: Http) -> tuple[str, ...]:
    sampling = named.sampling
    program = f"{facts.program} {facts.version}".strip()
    model = http.masked(model_title(named.address))
    notes = [f"{http.name} is {http.masked(program)} and serves {model}"]
    if http.has_key and goes_unencrypted(http.url):
        notes.append(
            f"the API key is sent to {http.name} unencrypted, so anyone on the "
            "network can read it: use https"
        )
    unused = (
        ("top_k", sampling.top_k > 0),
        ("min_p", sampling.min_p > 0),
        ("repetition_penalty", sampling.repetition_penalty != 1.0),
    )
    names = [name for name, is_set in unused if is_set]
    if facts.program in ("Ollama", "OpenAI") and names:
        notes.append(
            f"this server's protocol does not support {', '.join(names)}, so these "
            "settings have no effect"
        )
    return tuple(notes)
