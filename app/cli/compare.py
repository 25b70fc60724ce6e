"""`kvchat compare`: one prompt answered by two arms in turns, with a verdict; no screen."""

import secrets
from dataclasses import dataclass, replace

import click

from app.cli.options import SEED, Count, gathered, joined, opening_options, sampling, system_option
from app.config import load_settings
from app.console import EXIT_INTERRUPTED, Progress, note, print_json, print_text, prompt_text
from app.opening import ModelRequest, OpenedModel, loaded_engine, open_here
from app.render.compare import comparison_text
from engine.errors import WorkerError
from engine.experiment.arm import check_available, drafting_arm, parse_arm
from engine.experiment.comparison import SEED_BITS, Comparison, divergences
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message


@dataclass(frozen=True, slots=True)
class ComparePrompt:
    """The prompt with its conditions, as typed."""

    prompt: str | None
    system: str | None
    max_tokens: int
    temperature: float | None
    seed: int | None


compare_options = joined(
    click.option("--first", default="plain", show_default=True, metavar="SIDE",
                 help="Draft settings to compare, such as suffix:auto."),
    click.option("--second", metavar="SIDE",
                 help="Draft settings to compare with --first. [predictor and draft length "
                      "from the settings]"),
    click.option("--blocks", default=6, show_default=True, type=Count(),
                 help="Maximum number of blocks of four replies; 6 blocks decide most "
                      "comparisons."),
    click.option("--max-tokens", default=128, show_default=True, type=Count(2),
                 help="Maximum tokens per reply."),
    click.option("--temperature", type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy. [from the settings]"),
    click.option("--seed", type=SEED, help="Seed of every reply. [random]"),
    opening_options,
    system_option,
    click.option("--text", "shows_text", is_flag=True, help="Print the text of the replies."),
    click.option("--json", "as_json", is_flag=True,
                 help="Print replies, figures and verdict as JSON."),
    gathered("question", "app.cli.compare:ComparePrompt"),
)  # fmt: skip


@click.command(name="compare")
@click.argument("model")
@click.argument("prompt", required=False)
@compare_options
def command(
    asked: ModelRequest,
    question: ComparePrompt,
    first: str,
    second: str | None,
    blocks: int,
    shows_text: bool,
    as_json: bool,
) -> int:
    """Answer PROMPT with two settings in turn; report which is faster and whether the texts differ.

    SIDE is plain (no drafts) or PREDICTOR[:CONTROLLER[:LENGTH]], such as suffix:fixed:4. A block is
    four replies: first, second, second, first. PROMPT defaults to standard input. With --text,
    control characters are shown as symbols on a terminal; a pipe receives replies unchanged.

    \b
    kvchat compare smollm2 "Repeat this list: ..."
    kvchat compare qwen2.5-7b --draft qwen2.5-0.5b --second draft:fixed:4 < a.txt
    kvchat compare smollm2 "..." --first lookup:auto --second suffix --blocks 16
    """  # noqa: D301  click wants the backspace character itself
    text = prompt_text(question.prompt, 'kvchat compare MODEL "..."')
    opened = open_here(asked, load_settings().settings, "a comparison of drafts")
    if opened.types_note is not None:
        note(opened.types_note)
    settings = opened.configuration.speculation
    other = drafting_arm(settings) if second is None else parse_arm(second, settings)
    arms = (parse_arm(first, settings), other)
    request = _request(text, question, opened)
    with loaded_engine(opened.configuration, note) as engine:
        check_available(arms, engine.last_loaded.predictors)
        comparison = Comparison(engine.client, request, arms, speculation=settings)
        comparison.add_blocks(blocks)
        _follow(engine, comparison)
    if as_json:
        print_json(_as_json(comparison))
    else:
        answers = [each for each in comparison.shown if each is not None and shows_text]
        texts = [f"{each.arm.name}:\n{each.text.rstrip()}\n\n" for each in answers]
        print_text([*texts, comparison_text(comparison)])
    if comparison.was_stopped:
        return EXIT_INTERRUPTED
    if comparison.problem is not None:
        raise WorkerError(comparison.problem)
    return 0


def _request(text: str, question: ComparePrompt, opened: OpenedModel) -> GenerationRequest:
    system = opened.system_prompt if question.system is None else question.system
    sampling = opened.configuration.sampling
    if question.temperature is not None:
        sampling = replace(sampling, temperature=question.temperature)
    return GenerationRequest(
        messages=(*([Message("system", system)] if system else []), Message("user", text)),
        sampling=sampling,
        max_tokens=question.max_tokens,
        seed=secrets.randbits(SEED_BITS) if question.seed is None else question.seed,
    )


def _follow(engine: BlockingClient, comparison: Comparison) -> None:
    """Handle events until nothing runs; Ctrl+C stops it and keeps the whole blocks.

    A second Ctrl+C does not wait for the engine.
    """
    n_shown = 0
    with Progress() as progress:
        while (index := comparison.running_arm) is not None:
            if comparison.n_replies != n_shown:  # drawing takes time from the engine
                n_shown, n_most = comparison.n_replies, 4 * comparison.n_wanted
                text = f"reply {n_shown} of at most {n_most}, {comparison.arms[index].name}"
                progress.show(text, (n_shown - 1) / n_most)
            try:
                comparison.take(next(engine.events()))
            except KeyboardInterrupt:
                if comparison.was_stopped:
                    comparison.revoke("interrupted twice")
                comparison.stop()


def _as_json(comparison: Comparison) -> dict[str, object]:
    """Conditions, verdict, and every reply of whole blocks."""
    gain, request = comparison.gain, comparison.request
    return {
        "arms": [arm.name for arm in comparison.arms],
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "sampling": request.sampling,
        "problem": comparison.problem,
        "gain": gain,
        "is_faster": None if gain is None else gain.is_faster,
        "is_slower": None if gain is None else gain.reversed.is_faster,
        "is_settled": comparison.is_settled,
        "divergences": divergences(comparison),
        "blocks": [
            [
                {"arm": e.arm.name, "text": e.text, "note": e.note, "stats": e.stats.figures()}
                for e in block
            ]
            for block in comparison.blocks
        ],
    }
