"""`kvchat run --batch`: a file of prompts answered at once into another."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from app.cli.console import SlowReading, note
from app.cli.run_reply import EXIT_CANCELLED, metered

if TYPE_CHECKING:
    from engine.configuration import Configuration
    from engine.requests import GenerationRequest

OF_ONE_REPLY = {
    "prompt": "the prompt",
    "raw": "--raw",
    "tokens": "--tokens",
    "preload": "--preload",
    "written_path": "--write-manifest",
    "as_json": "--json",
}
"""What may not be typed beside `--batch`, and how it is called."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was typed of a batch."""

    path: Path
    out: Path
    metrics_path: Path | None
    n_at_once: int
    n_ctx: int | None
    """Tokens of context of each reply; None shares out what there is."""


def answer_batch(
    batch: Batch, configuration: "Configuration", base: "GenerationRequest", system: str
) -> int:
    """Answer a file of prompts; 1 where a line could not be, 130 where it was stopped."""
    from app.batch import BatchProgress, Results, answer_all, for_batch, read_requests
    from app.opening import loaded_engine

    path, out = batch.path, batch.out
    if out.exists() and path.exists() and out.samefile(path):
        raise click.UsageError("--out names the file of the prompts: name another")
    requests, broken = read_requests(path, base, system)
    for line in broken:
        note(f"line {line.number} is not answered: {line.reason}")
    with Results(out) as results:
        done = results.done()
        left = [one for one in requests if (one.name, one.digest) not in done]
        progress = BatchProgress(n_all=len(requests), n_done=len(requests) - len(left))
        if progress.n_done:
            note(f"{progress.n_done:,} of {progress.n_all:,} are in {out} already")
        if not left:
            return int(bool(broken))
        n_at_once = min(batch.n_at_once, len(left))
        configuration = for_batch(configuration, n_at_once, batch.n_ctx)
        shown = SlowReading()
        try:
            with (
                loaded_engine(configuration, note) as engine,
                metered(engine, batch.metrics_path) as metrics,
            ):
                for told in answer_all(
                    engine, left, results, progress, n_at_once=n_at_once, observe=metrics.observe
                ):
                    shown.answered(told.n_done, told.n_all, told.tps)
        except KeyboardInterrupt:
            shown.done()
            note(
                f"stopped: {progress.n_done:,} of {progress.n_all:,} are in {out}; the same "
                "command goes on"
            )
            return EXIT_CANCELLED
    shown.done()
    for line in progress.failed:
        note(f"line {line.number} is not answered: {line.reason}")
    note(
        f"{progress.n_done:,} of {progress.n_all:,} are in {out}: {progress.n_tokens:,} tokens in "
        f"{progress.elapsed_s:.1f} s, {progress.tps:.1f} a second, {n_at_once} at once"
    )
    return int(bool(broken or progress.failed))


def refuse_of_one_reply() -> None:
    """Make sure that nothing was typed which is of one reply.

    Raises:
        UsageError: something was.
    """
    context = click.get_current_context()
    for name, title in OF_ONE_REPLY.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--batch has prompts and results of its own: leave out {title}")
