"""What `kvchat run` does with an engine: replies that are printed, counted and written down."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import click

from app.batch import BatchProgress, BrokenLine, ResultsFile, answer_all, answering, read_requests
from app.cli.console import SlowReading, note, print_json, print_text, say, tell
from app.cli.options import refuse_typed
from app.config import load_settings
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

EXIT_CANCELLED = 130
EXIT_UNFINISHED = 1


@dataclass(slots=True)
class ReplyWatch:
    """What is seen of replies: their figures, and where each prompt came from."""

    metrics: Metrics
    is_verbose: bool
    """Whether that is told on standard error."""
    prompt: PromptReady | None = None
    """The last one."""

    def observe(self, event: Event) -> None:
        """Count an event."""
        self.metrics.observe(event)
        if isinstance(event, PromptReady):
            self.prompt = event
            if self.is_verbose:
                tell(reuse_text(event))


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a run tells beside its text, as it was typed."""

    written_path: Path | None
    """Of its manifest."""
    metrics_path: Path | None
    as_json: bool
    is_verbose: bool


N_NAMED = 20
"""Lines of a batch that are named, of those that are not answered."""
BESIDE_MANIFEST = ("manifest_path", "model", *(each.name for each in fields(Outputs)))
"""What may be typed beside a manifest, which says all the rest."""


def summary(finished: Finished, prompt: PromptReady | None) -> dict[str, object]:
    """What `--json` prints: the text, the counts kept apart, and the times in seconds."""
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
        "prompt": asdict(prompt) if prompt is not None and prompt.n_prompt else None,
    }


def answer(
    engine: BlockingClient,
    request: GenerationRequest,
    watch: ReplyWatch,
    *,
    shows_text: bool,
) -> Finished:
    """The end of a reply that is printed as it comes; Ctrl+C stops it and keeps what there is."""
    watch.prompt = None
    try:
        _follow(engine.reply(request), watch, shows_text=shows_text)
    except KeyboardInterrupt:
        engine.client.stop()
        _follow(engine.rest_of_reply(), watch, shows_text=shows_text)
    assert engine.finished is not None, "a reply ends with `Finished`"
    return engine.finished


def exit_code(finished: Finished) -> int:
    """What the command ends with, and what is wrong with a reply that was cut."""
    if finished.reason is FinishReason.CANCELLED:
        return EXIT_CANCELLED
    if finished.reason is FinishReason.CONTEXT:
        note("the reply was cut off because the context is full: raise --ctx")
    if finished.fits_grammar is False:
        said = "the reply ended before the schema or grammar was satisfied"
        is_short = finished.reason is FinishReason.LENGTH
        note(f"{said}: raise --max-tokens" if is_short else f"{said} ({finished.reason})")
        return EXIT_UNFINISHED
    return 0


@contextmanager
def watched(
    configuration: Configuration, outputs: Outputs
) -> Iterator[tuple[BlockingClient, ReplyWatch]]:
    """An engine for the block, and what is seen of its replies.

    Counts are in their file however the block ends.
    """
    with loaded_engine(configuration, note) as engine:
        metrics = Metrics()
        metrics.observe(engine.last_loaded)
        try:
            yield engine, ReplyWatch(metrics, outputs.is_verbose)
        except RequestFailedError as error:
            metrics.observe(error.event)
            raise
        finally:
            if (path := outputs.metrics_path) is not None:
                replace_file(path, [metrics.prometheus().encode()], is_durable=False)


def write(
    path: Path,
    engine: BlockingClient,
    prompts: tuple[str, ...],
    system: str,
    request: GenerationRequest,
    replies: list[Finished],
    since: float,
) -> None:
    """Write the manifest of a run; one that was stopped has none."""
    if any(reply.reason is FinishReason.CANCELLED for reply in replies):
        note(f"the run was stopped: {path} was not written")
        return
    manifest = recorded(
        engine.last_loaded,
        prompts=prompts,
        system=system,
        request=request,
        replies=replies,
        since=since,
    )
    write_manifest(manifest, path)


def repeat(path: Path, model: str | None, outputs: Outputs) -> int:
    """Make the run of a manifest; 1 where a reply is another than the recorded one."""
    refuse_typed("--manifest sets all options of the run", lambda name: name not in BESIDE_MANIFEST)
    since = time.time()
    manifest, configuration = open_manifest(path, model, load_settings().settings)
    replies: list[Finished] = []
    told: list[str] = []
    prompts_read: list[PromptReady | None] = []
    with watched(configuration, outputs) as (engine, watch):
        for index, request in enumerate(manifest.requests):
            replies.append(answer(engine, request, watch, shows_text=not outputs.as_json))
            prompts_read.append(watch.prompt)
            if replies[-1].reason is FinishReason.CANCELLED:
                break
            other = difference(manifest, index, replies[-1])
            told += [] if other is None else [other]
        if outputs.written_path is not None:
            prompts, request = manifest.prompts, manifest.requests[0]
            write(outputs.written_path, engine, prompts, manifest.system, request, replies, since)
    if outputs.as_json:
        summaries = [summary(*each) for each in zip(replies, prompts_read, strict=True)]
        print_json(summaries if len(manifest.prompts) > 1 else summaries[0])
    for text in told:
        note(text)
    return max(int(bool(told)), *map(exit_code, replies))


def answer_batch(
    path: Path,
    out: Path,
    opened: OpenedModel,
    base: GenerationRequest,
    outputs: Outputs,
    *,
    n_at_once: int,
    configure: Callable[[int], Configuration],
) -> int:
    """Answer a file of prompts; 1 where a line could not be, 130 where it was stopped.

    Args:
        path: The prompts.
        out: Where results are appended.
        opened: The model, and the instruction that each begins with.
        base: What a line leaves out.
        outputs: Where counts and times are written.
        n_at_once: Replies that are made at a time.
        configure: The configuration for so many replies at once.
    """
    if out.exists() and path.exists() and out.samefile(path):
        raise click.UsageError("--out and --batch are the same file: choose another --out")
    one = opened.configuration
    with SlowReading() as shown:
        requests, broken = read_requests(
            path, base, opened.system_prompt, shown.prompts, answered_by=answering(one)
        )
    _tell_unanswered(broken)
    with ResultsFile(out) as results:
        done = results.done()
        left = [each for each in requests if each.key not in done]
        progress = BatchProgress(n_all=len(requests), n_done=len(requests) - len(left))
        if progress.n_done:
            note(f"{progress} replies are already in {out}")
        if not left:
            return int(bool(broken))
        n_at_once = min(n_at_once, len(left))
        try:
            with SlowReading() as shown, watched(configure(n_at_once), outputs) as (engine, watch):
                for told in answer_all(
                    engine,
                    left,
                    results,
                    progress,
                    n_at_once=n_at_once,
                    model=one.model_path.name,
                    observe=watch.observe,
                ):
                    shown.answered(told.n_done, told.n_all, told.tps)
        except KeyboardInterrupt:
            note(f"stopped: {progress} replies are in {out}; run the same command to continue")
            return EXIT_CANCELLED
    _tell_unanswered(progress.failed)
    note(
        f"{progress} replies are in {out}: {progress.n_tokens:,} tokens in "
        f"{progress.elapsed_s:.1f} s, {progress.tps:.1f} tok/s, {n_at_once} in parallel"
    )
    return int(bool(broken or progress.failed))


def _follow(events: Iterator[Event], watch: ReplyWatch, *, shows_text: bool) -> None:
    shown = ""
    for event in events:
        watch.observe(event)
        match event:
            case TokensCommitted(text=text) if shows_text and text:
                print_text([text], nl=False)
                shown = text
            case SpeculationChanged(note=str(problem)):
                note(problem)
            case Waiting(text=text) if text:
                note(text)
            case Finished():
                if shown and not shown.endswith("\n"):
                    say()


def _tell_unanswered(lines: Sequence[BrokenLine]) -> None:
    for line in lines[:N_NAMED]:
        note(f"line {line.number} has no reply: {line.reason}")
    if len(lines) > N_NAMED:
        note(f"lines without a reply that are not listed: {len(lines) - N_NAMED:,}")
