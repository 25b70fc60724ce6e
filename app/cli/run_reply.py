"""Print, count and record the replies of `kvchat run`, once the model is loaded."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from app.batch import BatchProgress, BrokenLine, ResultsFile, answer_all, answering, read_requests
from app.config import load_settings
from app.console import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    Progress,
    log_line,
    note,
    print_json,
    print_line,
    print_text,
)
from app.manifests import difference, open_manifest, recorded
from app.opening import OpenedModel, loaded_engine
from app.render.reuse import reuse_text
from engine.configuration import Configuration
from engine.events import (
    Event,
    Finished,
    FinishReason,
    PromptReady,
    SpeculationChanged,
    TokensCommitted,
    Waiting,
)
from engine.files import replace_file
from engine.generation.reasoning import Thought
from engine.manifest import write_manifest
from engine.metrics import Metrics
from engine.process.blocking_client import BlockingClient, RequestFailedError
from engine.requests import GenerationRequest

PARALLEL = 4
"""Replies of a batch that are generated at once."""
N_NAMED = 20
"""Lines without a reply that are listed."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `kvchat run` other than the model and its settings."""

    prompt: str | None
    """None or `-` is standard input."""
    system: str | None
    """None is that of the preset or the settings."""
    images: tuple[Path, ...]
    raw: bool
    tokens: str | None
    preload: bool
    stop: tuple[str, ...]
    max_tokens: int | None
    seed: int | None
    is_plain: bool
    batch_path: Path | None
    out_path: Path | None
    parallel: int | None
    manifest_path: Path | None
    """A manifest to run again."""
    written_path: Path | None
    """The manifest to write."""
    metrics_path: Path | None
    as_json: bool
    is_verbose: bool


@dataclass(slots=True)
class Replies:
    """A loaded engine, and the figures of its replies."""

    engine: BlockingClient
    metrics: Metrics
    is_verbose: bool
    """Whether reused tokens are reported on standard error."""
    prompt: PromptReady | None = None
    """Prefill of the last reply."""

    def observe(self, event: Event) -> None:
        """Count an event."""
        self.metrics.observe(event)
        if isinstance(event, PromptReady):
            self.prompt = event
            if self.is_verbose:
                log_line(reuse_text(event))

    def answer(self, request: GenerationRequest, *, shows_text: bool) -> Finished:
        """Print a reply as it comes; Ctrl+C stops it and keeps its text."""
        self.prompt = None
        try:
            self._follow(self.engine.reply(request), shows_text=shows_text)
        except KeyboardInterrupt:
            self.engine.client.stop()
            self._follow(self.engine.rest_of_reply(), shows_text=shows_text)
        assert self.engine.finished is not None, "a reply ends with `Finished`"
        return self.engine.finished

    def _follow(self, events: Iterator[Event], *, shows_text: bool) -> None:
        shown = ""
        for event in events:
            self.observe(event)
            match event:
                case TokensCommitted(text=text) if shows_text and text:
                    print_text([text], nl=False)
                    shown = text
                case SpeculationChanged(note=str(text)) | Waiting(text=text) if text:
                    note(text)
                case Finished() if shown and not shown.endswith("\n"):
                    print_line()

    def write_manifest(
        self,
        path: Path,
        prompts: tuple[str, ...],
        system: str,
        request: GenerationRequest,
        replies: list[Finished],
        since: float,
    ) -> None:
        """Write the manifest of a run, unless it was stopped."""
        if any(reply.reason is FinishReason.CANCELLED for reply in replies):
            note(f"the run was stopped: {path} was not written")
            return
        manifest = recorded(
            self.engine.last_loaded,
            prompts=prompts,
            system=system,
            request=request,
            replies=replies,
            since=since,
        )
        write_manifest(manifest, path)


@contextmanager
def loaded(configuration: Configuration, options: RunOptions) -> Iterator[Replies]:
    """An engine for the block; its metrics are written however the block ends."""
    with loaded_engine(configuration, note) as engine:
        metrics = Metrics()
        metrics.observe(engine.last_loaded)
        try:
            yield Replies(engine, metrics, options.is_verbose)
        except RequestFailedError as error:
            metrics.observe(error.event)
            raise
        finally:
            if (path := options.metrics_path) is not None:
                replace_file(path, [metrics.prometheus().encode()], is_durable=False)


def summary(finished: Finished, prompt: PromptReady | None) -> dict[str, object]:
    """The JSON of a reply: its text, its counts, and its times in seconds."""
    thought = Thought.of(finished.text)
    return {
        "text": finished.text,
        "thinking": None if thought is None else thought.text,
        "answer": finished.text if thought is None else thought.answer,
        "finish_reason": finished.reason.value,
        "fits_grammar": finished.fits_grammar,
        "token_ids": finished.token_ids,
        "seed": finished.seed,
        **finished.stats.figures(),
        "prompt": prompt if prompt is not None and prompt.n_prompt else None,
    }


def exit_code(finished: Finished) -> int:
    """The exit code of a reply; a reply that was cut off is noted."""
    if finished.reason is FinishReason.CANCELLED:
        return EXIT_INTERRUPTED
    if finished.reason is FinishReason.CONTEXT:
        note("the reply was cut off because the context is full: raise --ctx")
    if finished.fits_grammar is False:
        is_short = finished.reason is FinishReason.LENGTH
        why = ": raise --max-tokens" if is_short else f" ({finished.reason})"
        note(f"the reply ended before the schema or grammar was satisfied{why}")
        return EXIT_FAILED
    return 0


def replay(path: Path, model: str | None, options: RunOptions) -> int:
    """Run a manifest again; 1 if a reply differs from the recorded one."""
    since = time.time()
    manifest, configuration = open_manifest(path, model, load_settings().settings)
    finished: list[Finished] = []
    summaries: list[dict[str, object]] = []
    differences: list[str] = []
    with loaded(configuration, options) as replies:
        for index, request in enumerate(manifest.requests):
            reply = replies.answer(request, shows_text=not options.as_json)
            finished.append(reply)
            summaries.append(summary(reply, replies.prompt))
            if reply.reason is FinishReason.CANCELLED:
                break
            differences += filter(None, [difference(manifest, index, reply)])
        if options.written_path is not None:
            prompts, request = manifest.prompts, manifest.requests[0]
            replies.write_manifest(
                options.written_path, prompts, manifest.system, request, finished, since
            )
    if options.as_json:
        print_json(summaries if len(manifest.prompts) > 1 else summaries[0])
    for text in differences:
        note(text)
    return max(int(bool(differences)), *map(exit_code, finished))


def answer_batch(
    opened: OpenedModel,
    base: GenerationRequest,
    options: RunOptions,
    configure: Callable[[int], Configuration],
) -> int:
    """Answer a file of prompts; 1 if a line has no reply, 130 if the user stopped it."""
    path, out, one = options.batch_path, options.out_path, opened.configuration
    assert path is not None
    assert out is not None
    if out.exists() and path.exists() and out.samefile(path):
        raise click.UsageError("--out and --batch are the same file: choose another --out")
    with Progress() as shown:
        requests, broken = read_requests(
            path,
            base,
            opened.system_prompt,
            lambda n: shown.show(f"reading the prompts: {n:,}"),
            answered_by=answering(one),
        )
    _note_unanswered(broken)
    with ResultsFile(out) as results:
        done = results.done()
        left = [each for each in requests if each.key not in done]
        progress = BatchProgress(n_all=len(requests), n_done=len(requests) - len(left))
        if progress.n_done:
            note(f"{progress} replies are already in {out}")
        if not left:
            return int(bool(broken))
        n_at_once = min(options.parallel or PARALLEL, len(left))
        try:
            with Progress() as shown, loaded(configure(n_at_once), options) as replies:
                for _ in answer_all(
                    replies.engine,
                    left,
                    results,
                    progress,
                    n_at_once=n_at_once,
                    model=one.model_path.name,
                    observe=replies.observe,
                ):
                    text = f"answering: {progress} · {progress.tps:.0f} tok/s"
                    shown.show(text, progress.n_done / progress.n_all)
        except KeyboardInterrupt:
            note(f"stopped: {progress} replies are in {out}; run the same command to continue")
            return EXIT_INTERRUPTED
    _note_unanswered(progress.failed)
    note(
        f"{progress} replies are in {out}: {progress.n_tokens:,} tokens in "
        f"{progress.elapsed_s:.1f} s, {progress.tps:.1f} tok/s, {n_at_once} in parallel"
    )
    return int(bool(broken or progress.failed))


def _note_unanswered(lines: Sequence[BrokenLine]) -> None:
    for line in lines[:N_NAMED]:
        note(f"line {line.number} has no reply: {line.reason}")
    if len(lines) > N_NAMED:
        note(f"lines without a reply that are not listed: {len(lines) - N_NAMED:,}")
