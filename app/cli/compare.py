"""`kvchat compare`: one prompt answered in two ways, alternately, with a verdict; no screen."""

from typing import TYPE_CHECKING

import click

from app.cli.console import note, print_json, print_text, prompt_text, say
from app.cli.options import SEED, Count, joined, opening_options, sampling, system_option

if TYPE_CHECKING:
    from app.compare.comparison import Comparison
    from app.compare.side import Side
    from app.opening import ModelRequest
    from engine.configuration import Configuration
    from engine.process.blocking_client import BlockingClient
    from engine.requests import GenerationRequest

EXIT_INTERRUPTED = 130


compare_options = joined(
    click.option("--first", default="off", show_default=True, metavar="SIDE",
                 help="First side."),
    click.option("--second", metavar="SIDE", help="Second side. [predictor and controller of the "
                                                  "settings]"),
    click.option("--pairs", default=3, show_default=True, type=Count(), help="Number of reply "
                                                                             "pairs."),
    click.option("--max-tokens", default=256, show_default=True, type=Count(2),
                 help="Maximum tokens of a reply."),
    click.option("--temperature", type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy. [from the settings]"),
    click.option("--seed", type=SEED, help="Seed of every reply. [random]"),
    opening_options,
    system_option,
    click.option("--text", "shows_text", is_flag=True, help="Print the text of the replies."),
    click.option("--json", "as_json", is_flag=True,
                 help="Print replies, figures and verdict as JSON."),
)  # fmt: skip


@click.command(name="compare")
@click.argument("model")
@click.argument("prompt", required=False)
@compare_options
def command(
    asked: "ModelRequest",
    prompt: str | None,
    first: str,
    second: str | None,
    pairs: int,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
    system: str | None,
    shows_text: bool,
    as_json: bool,
) -> int:
    """Answer PROMPT alternately with two settings; report which is faster and whether texts differ.

    A SIDE is PREDICTOR[:RULE[:LENGTH]]. PROMPT defaults to standard input. With --text, control
    characters in replies are shown as symbols on a terminal; a pipe gets them unchanged.

    \b
    kvchat compare smollm2 "Repeat this list: ..."
    kvchat compare qwen2.5-7b --draft qwen2.5-0.5b --second draft:fixed:4 < a.txt
    kvchat compare smollm2 "..." --first lookup:fixed:4 --second suffix --pairs 5
    """  # noqa: D301  click wants the backspace character itself
    from app.compare.side import read_side, speculative_side
    from app.config import load_settings
    from app.opening import open_here
    from engine.errors import WorkerError

    text = prompt_text(prompt, 'kvchat compare MODEL "..."')
    opened = open_here(asked, load_settings().settings, "a comparison of drafts")
    if opened.types_note is not None:
        note(opened.types_note)
    configuration = opened.configuration
    settings = configuration.speculation
    other = speculative_side(settings) if second is None else read_side(second, settings)
    sides = (read_side(first, settings), other)
    instruction = opened.system_prompt if system is None else system
    request = _request(text, instruction, configuration, max_tokens, temperature, seed)
    comparison = _compare(configuration, request, sides, pairs)
    if as_json:
        from app.compare.verdict import as_values

        print_json(as_values(comparison))
    else:
        _show(comparison, shows_text=shows_text)
    if comparison.problem is None:
        return 0
    if comparison.was_stopped:
        return EXIT_INTERRUPTED
    raise WorkerError(comparison.problem)


def _request(
    text: str,
    system: str,
    configuration: "Configuration",
    n_tokens: int,
    temperature: float | None,
    seed: int | None,
) -> "GenerationRequest":
    import secrets
    from dataclasses import replace

    from app.compare.side import SEED_BITS
    from engine.requests import GenerationRequest, Message

    user = Message("user", text)
    sampling = configuration.sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return GenerationRequest(
        messages=(Message("system", system), user) if system else (user,),
        sampling=sampling,
        max_tokens=n_tokens,
        seed=secrets.randbits(SEED_BITS) if seed is None else seed,
    )


def _compare(
    configuration: "Configuration",
    request: "GenerationRequest",
    sides: "tuple[Side, Side]",
    n_pairs: int,
) -> "Comparison":
    from app.compare.comparison import Comparison
    from app.compare.side import check_available
    from app.opening import loaded_engine

    with loaded_engine(configuration, note) as engine:
        check_available(sides, engine.last_loaded.predictors)
        comparison = Comparison(engine.client, request, sides, restore=configuration.speculation)
        comparison.add_pairs(n_pairs)
        _follow(engine, comparison)
        return comparison


def _follow(engine: "BlockingClient", comparison: "Comparison") -> None:
    """Take events until nothing runs; Ctrl+C ends it and keeps the whole pairs."""
    said = None
    while comparison.is_running:
        now = (len(comparison.pairs), comparison.running_side)
        if now != said:
            _say_pair(comparison)
            said = now
        try:
            comparison.take(next(engine.events()))
        except KeyboardInterrupt:
            comparison.stop()


def _say_pair(comparison: "Comparison") -> None:
    if comparison.running_side is not None:
        label = comparison.sides[comparison.running_side].label
        note(f"pair {len(comparison.pairs) + 1} of {comparison.n_wanted}, {label}")


def _show(comparison: "Comparison", *, shows_text: bool) -> None:
    from app.render.compare import comparison_text

    for side, answer in zip(comparison.sides, comparison.shown, strict=True):
        if shows_text and answer is not None:
            say((f"{side.label}:", "bold"))
            print_text([answer.text.rstrip(), "\n"])
    say(comparison_text(comparison))
