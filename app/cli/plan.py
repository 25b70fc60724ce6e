"""`kvchat plan`: what a model costs in memory, and which context fits."""

from collections.abc import Callable
from pathlib import Path

import click

from app.cli.console import print_json
from engine.errors import EngineError
from engine.memory.units import parse_bytes

MAX_TOKENS = 2**31 - 1
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


class Bytes(click.ParamType[int]):
    """A size such as 8GiB."""

    name = "size"

    def __init__(self, *, can_be_zero: bool = False) -> None:
        self.can_be_zero = can_be_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read a size."""
        text = str(value)
        if self.can_be_zero and text.strip() == "0":
            return 0
        try:
            return parse_bytes(text)
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Layers(click.ParamType[int | str]):
    """A number of layers, or `all`."""

    name = "N|all"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Read a number of layers."""
        text = str(value)
        if text in ("all", "auto"):
            return text
        if not (text.isascii() and text.isdecimal()):
            self.fail(f"{text!r} is no number of layers: write 0 or more, or all", param, ctx)
        return int(text)


Options = Callable[[Callable[..., None]], Callable[..., None]]


def _counted(flag: str, name: str, text: str, largest: int) -> Options:
    return click.option(flag, name, type=click.IntRange(1, largest), metavar="N", help=text)


@click.command(name="plan")
@click.argument("model")
@click.option("--preset", metavar="NAME", help="Start from a preset, by its name or file.")
@click.option(
    "--vram",
    "--device",
    "vram",
    type=Bytes(),
    multiple=True,
    metavar="SIZE",
    help="Plan for a GPU of this size instead of those found; again for more GPUs.",
)
@click.option(
    "--card", "cards", multiple=True, metavar="NAME", help='Plan for a GPU by name, as "RTX 3060".'
)
@_counted("--ctx", "n_ctx", "Tokens of context; without it the preset's, at most 8192.", MAX_TOKENS)
@click.option("--type-k", type=click.Choice(KV_TYPES), help="Type of the cached keys.")
@click.option("--type-v", type=click.Choice(KV_TYPES), help="Type of the cached values.")
@click.option(
    "--flash-attention", type=click.Choice(["on", "off", "auto"]), help="Flash attention."
)
@_counted("--batch", "n_batch", "Tokens of a batch.", 65536)
@_counted("--ubatch", "n_ubatch", "Tokens that are computed at once.", 65536)
@click.option(
    "--gpu-layers",
    "n_gpu_layers",
    type=Layers(),
    help="Layers on the GPU, the output counting as one; without it, all that fit.",
)
@_counted(
    "--slots",
    "n_slots",
    "Chats that kvchat holds, or requests that llama-server answers, side by side.",
    256,
)
@click.option(
    "--unified", "kv_unified", is_flag=True, default=None, help="The slots share their cells."
)
@click.option(
    "--swa-full", is_flag=True, default=None, help="Sliding-window layers keep every token."
)
@click.option("--draft", metavar="MODEL", help="A draft model beside it.")
@_counted("--mtp", "n_mtp_draft", "Tokens that its own head drafts, in llama-server.", 16)
@click.option(
    "--target",
    type=click.Choice(["kvchat", "llama-server"]),
    default="kvchat",
    show_default=True,
    help="The program that is to run it.",
)
@click.option(
    "--margin",
    "margin_bytes",
    type=Bytes(can_be_zero=True),
    metavar="SIZE",
    help="Memory to keep free on every device; without it 512MiB.",
)
@click.option(
    "--dry-run", is_flag=True, help="Ask llama.cpp what it would allocate; loads no weights."
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with what llama-server's log tells (-lv 4 or --log-jsonl).",
)
@click.option(
    "--calibrate", is_flag=True, help="With --log: plan with what the log says about the GPU."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    vram: tuple[int, ...],
    cards: tuple[str, ...],
    *,
    dry_run: bool,
    log: Path | None,
    calibrate: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Say what MODEL costs in memory, device by device, and the largest context that fits.

    MODEL is a path, a name from `kvchat models`, a name of the catalogue with a quantisation behind
    a colon, a URL, or hf:owner/repository/file.gguf. Nothing is loaded, and of a remote file only
    the header is read. Exact numbers are marked `=`, llama.cpp's dry run `*`, estimates `~`.
    The exit code is 0 also where it does not fit.

    \b
    kvchat plan qwen2.5-7b --vram 8GiB --ctx 32768
    kvchat plan qwen3-8b:Q4_K_M --card "RTX 3060"
    kvchat plan hf:owner/repository/file.gguf
    kvchat plan qwen2.5-7b --target llama-server --slots 4 --type-k q8_0 --type-v q8_0
    """  # noqa: D301  click wants the backspace character itself
    from app.cli.slow_reading import SlowReading
    from app.planning.asked import Asked, setup_of
    from app.planning.measuring import can_measure, measured_plan
    from app.planning.plan import Planner
    from engine.memory.cards import find_card

    asked = Asked(
        model=model,
        preset=_text(options.pop("preset")),
        target="llama-server" if options.pop("target") == "llama-server" else "kvchat",
        draft=_text(options.pop("draft")),
        vram_bytes=vram,
        cards=tuple(find_card(card).name for card in cards),
        margin_bytes=_whole(options.pop("margin_bytes")),
        rules={name: value for name, value in options.items() if value is not None},
    )
    planner = Planner()
    reading = SlowReading()
    setup = setup_of(asked, planner, progress=reading.header)
    reading.done()
    plan = planner.plan(setup)
    if dry_run:
        if not can_measure(plan):
            raise click.UsageError(
                "--dry-run measures a file of this machine on its own devices: name one, and leave "
                "out --vram, --card and a preset with vram_gib"
            )
        plan = measured_plan(plan)
    if calibrate:
        from app.cli.compare_log import learn

        if log is None:
            raise click.UsageError("--calibrate learns from a log: name it with --log")
        learn(plan, log)
    if as_json:
        from app.planning.as_json import plan_json

        found = plan_json(plan, planner)
        if log is not None:
            from app.cli.compare_log import comparison_json

            found["log"] = comparison_json(plan, log)
        print_json(found)
        return
    if log is not None:
        from app.cli.compare_log import print_comparison

        print_comparison(plan, log)
        return
    from app.cli.plan_text import print_plan

    print_plan(plan, planner)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
