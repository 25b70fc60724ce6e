"""`kvchat batch`: answer a file of prompts; the same command continues a stopped run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from app.batch import (
    BatchProgress,
    BrokenLine,
    ResultsFile,
    answer_all,
    answering,
    read_requests,
    with_slots,
)
from app.cli.options import FILE, Count
from app.cli.replies import ReplyOptions, base_request, loaded, open_for_replies, reply_options
from app.config import load_settings
from app.console import EXIT_INTERRUPTED, Progress, note
from app.opening import ModelRequest, OpenedModel, open_model
from engine.configuration import MAX_SLOTS, Configuration

PARALLEL = 4
"""Replies that are generated at once."""
N_NAMED = 20
"""Lines without a reply that are listed."""


@click.command(name="batch")
@click.argument("path", metavar="PROMPTS", type=FILE)
@click.option("--out", required=True, type=FILE, help="Append the results to this file.")
@click.option("--parallel", "n_parallel", type=Count(1, MAX_SLOTS), default=PARALLEL,
              help=f"Number of replies to generate at once. [{PARALLEL}]")  # fmt: skip
@reply_options
def command(
    *,
    path: Path,
    out: Path,
    n_parallel: int,
    asked: ModelRequest,
    reply: ReplyOptions,
    metrics_path: Path | None,
    **typed: object,
) -> int:
    """Answer the prompts of a JSONL file; exit with 1 if a line has no reply.

    Each line is a JSON object with a prompt or messages, and settings of its own. The same
    command continues a stopped run.

    \b
    kvchat batch prompts.jsonl --out replies.jsonl
    kvchat batch prompts.jsonl --out replies.jsonl --parallel 8 --ctx 4k
    """  # noqa: D301  click wants the backspace character itself
    opened = open_for_replies(asked, reply, typed)
    if out.exists() and path.exists() and out.samefile(path):
        raise click.UsageError("PROMPTS and --out are the same file: choose another --out")
    with Progress() as shown:
        requests, broken = read_requests(
            path,
            base_request(opened, reply),
            opened.system_prompt,
            lambda n: shown.show(f"reading the prompts: {n:,}"),
            answered_by=answering(opened.configuration),
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
        n_at_once = min(n_parallel, len(left))
        configuration = _parallel(asked, opened, n_at_once)
        try:
            with Progress() as shown, loaded(configuration, metrics_path) as replies:
                for _ in answer_all(
                    replies.engine,
                    left,
                    results,
                    progress,
                    n_at_once=n_at_once,
                    model=opened.configuration.model_path.name,
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


def _parallel(asked: ModelRequest, opened: OpenedModel, n_at_once: int) -> Configuration:
    """The configuration with a slot for each reply; a server has its own."""
    one = opened.configuration
    if one.server is not None:
        return one
    several = open_model(with_slots(asked, one, n_at_once), load_settings().settings)
    return replace(several.configuration, speculation=one.speculation, sampling=one.sampling)


def _note_unanswered(lines: Sequence[BrokenLine]) -> None:
    for line in lines[:N_NAMED]:
        note(f"line {line.number} has no reply: {line.reason}")
    if len(lines) > N_NAMED:
        note(f"lines without a reply: {len(lines):,} in total")
