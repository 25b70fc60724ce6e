"""`kvchat fit`: the best configuration of a model for a goal, on a machine that is here or not."""

from dataclasses import dataclass, replace

import click

from app.cli.options import Count, Size, draft_option, gathered, joined, json_option
from app.cli.plan import MachineOptions, machine_options, slots_option
from app.cli.plan_output import print_fit
from app.console import Progress, log_line, print_json, print_text
from app.planning import user_planner
from engine.configuration import KVTypes
from engine.memory.terms import Target
from engine.planning.cache_types import AUTO
from engine.planning.fit import FitResult, fit
from engine.planning.offload import Offload
from engine.planning.planner import Setup
from engine.planning.report import export_request, fit_json
from engine.planning.request import usual_configuration
from engine.planning.search import Goal, SearchLimits
from engine.presets.export import DEFAULT_MARGIN_BYTES
from engine.presets.formats import export_format


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options of `kvchat fit`: the goal and its limits."""

    goal: str
    draft: str | None
    n_slots: int | None
    min_context: int | None
    max_context: int | None
    kv: str | None
    kv_budget: int | None
    offload: str
    target: Target


GOALS = ("context", "quality", "speed", "balanced")
OFFLOADS = ("none", "partial", "any", "full")


fit_options = joined(
    click.option("--goal", type=click.Choice(GOALS), default="balanced", show_default=True,
                 help="What to maximise: context, cache quality or speed; balanced weighs all "
                      "three."),
    machine_options,
    click.option("--no-gpu", is_flag=True, help="Plan without a GPU."),
    draft_option,
    slots_option,
    click.option("--min-ctx", "--min-context", "min_context", type=Count(),
                 help="Minimum context per slot. [8192]"),
    click.option("--max-ctx", "--max-context", "max_context", type=Count(),
                 help="Maximum context per slot. [training context]"),
    click.option("--kv", metavar="TYPES",
                 help="K/V types to choose from, best first. [auto: types that passed "
                      "`kvchat cache-quality`, else f16,q8_0,q4_0]"),
    click.option("--kv-budget", type=Size(), help="Maximum size of the KV cache, such as 1GiB."),
    click.option("--offload", type=click.Choice(OFFLOADS), default="partial", show_default=True,
                 help="Weights to keep in RAM. none: no weights; partial: only weights that do not "
                 "fit on the GPU; any: as many as help to reach the goal; full: all weights."),
    click.option("--target", type=click.Choice(["kvchat", "llama-server"]), default="llama-server",
                 show_default=True, help="Program that runs the model."),
    click.option("--format", "format_name", metavar="NAME",
                 help="Print the result in this export format."),
    json_option,
    gathered("options", "app.cli.fit:FitOptions"),
)  # fmt: skip


@click.command(name="fit")
@click.argument("model")
@fit_options
def command(
    model: str,
    machine: MachineOptions,
    options: FitOptions,
    *,
    format_name: str | None,
    as_json: bool,
) -> None:
    """Find the best configuration of MODEL for a goal; print the reasons and the command.

    Specify MODEL as for `kvchat plan`; no model is loaded. By default, only K/V types with fast
    CUDA kernels are considered, and the context is at most the training context.

    \b
    kvchat fit qwen3-8b --goal context --device 12GiB
    kvchat fit qwen3-30b-a3b --goal speed --card "RTX 3060" --ram 64GiB
    kvchat fit qwen2.5-7b --card "M4 Pro 24GB" --format lm-studio
    kvchat fit qwen3-32b --device host1:24GiB --device host2:2x24GiB
    """  # noqa: D301  click wants the backspace character itself
    if as_json and format_name is not None:
        raise click.UsageError("--json prints the search, --format prints an export: use only one")
    fit = _fitted(model, machine, options)
    if format_name is not None:
        _print_export(fit, format_name)
    elif as_json:
        print_json(fit_json(fit))
    else:
        print_fit(fit)


def _fitted(model: str, machine: MachineOptions, options: FitOptions) -> FitResult:
    kv = options.kv
    limits = SearchLimits(
        min_n_ctx=options.min_context,
        max_n_ctx=options.max_context,
        pairs=None
        if kv is None or kv.strip().lower() == AUTO
        else tuple(map(KVTypes.parse, kv.split(","))),
        cache_bytes=options.kv_budget,
        offload=Offload(options.offload),
    )
    planner = user_planner()
    with Progress() as progress:
        start = usual_configuration(model, options.draft, planner, progress=progress.header)
        setup = Setup(
            replace(start, n_slots=options.n_slots or 1),
            options.target,
            machine.machine,
            DEFAULT_MARGIN_BYTES if machine.margin is None else machine.margin,
        )
        return fit(setup, Goal(options.goal), planner, limits)


def _print_export(fit: FitResult, format_name: str) -> None:
    format_ = export_format(format_name)
    request = export_request(fit.plan)
    exported = format_.render(request)
    print_text([exported.text], nl=False)
    if not format_.has_comments:
        for note in (*exported.differences, *request.warnings):
            log_line(f"# {note}")
