"""`kvchat plan`, and the options that `export` and `fit` have in common with it."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import cast, get_args

import click

from app.cli.options import (
    ADAPTER,
    GPUS,
    OPEN_KV_TYPE,
    SHARES,
    Count,
    Layers,
    Number,
    Size,
    backend_choice,
    draft_option,
    joined,
    json_option,
    kv_options,
    mmproj_option,
    preset_option,
    set_option,
    threads_option,
)
from app.cli.plan_output import print_plan
from app.config import load_settings
from app.console import Progress, log_line, print_json
from app.library import read_offer
from app.paths import presets_dir
from app.planning import user_planner, with_settings
from engine.memory.cards import find_card
from engine.memory.hardware import Instructions
from engine.memory.terms import Target
from engine.model.hub import DownloadError, HubName, parse_hub_name
from engine.model.remote import RemoteFileError
from engine.planning.cache_types import open_types, type_rules, types_text
from engine.planning.machine import PlannedMachine, named_gpus
from engine.planning.measured import can_measure, measured_plan
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.report import plan_json
from engine.planning.request import PlanRequest, setup_of
from engine.planning.resolve import AUTO_N_CTX
from engine.planning.values import AskedThreads, thread_rules
from engine.planning.workers import workers_of
from engine.presets.library import find_preset
from engine.presets.preset import Preset

CPUS = get_args(Instructions)
OF_ONE_FILE = {
    "dry_run": "--dry-run", "draft": "--draft", "mmproj": "--mmproj",
    "lora": "--lora", "n_mtp_draft": "--mtp", "n_gpu_layers": "--gpu-layers",
    "n_cpu_moe": "--n-cpu-moe",
}  # fmt: skip
"""Options of a plan that say nothing of the other files of a repository."""
MACHINE = frozenset({"vram", "cards", "ram", "cpu", "margin", "net"})


machine_options = joined(
    click.option(
        "--vram",
        "--device",
        "vram",
        type=GPUS,
        multiple=True,
        help="GPUs to plan for, by memory: 8GiB or 2x24GiB; HOST:2x24GiB for GPUs of another "
             "machine over RPC.",
    ),
    click.option("--net", type=Number(0.001, 10_000), metavar="GBIT", default=1.0,
                 show_default=True, help="Bandwidth of the network to other machines, in Gbit/s."),
    click.option("--card", "cards", multiple=True, metavar="NAME",
                 help='GPU by name, such as "RTX 3060"; `kvchat models cards` lists all names.'),
    click.option("--ram", type=Size(), help="Plan with this much RAM. [the free RAM]"),
    click.option("--cpu", type=click.Choice(CPUS),
                 help="CPU features, which decide how llama.cpp repacks weights. [CPU of this "
                      "machine]"),
    click.option("--margin", type=Size(can_be_zero=True),
                 help="Memory to leave free on every device. [512MiB]"),
)  # fmt: skip

slots_option = click.option(
    "--slots",
    "n_slots",
    type=Count(1, 256),
    help="Number of slots: parallel chats in kvchat, parallel requests in llama-server.",
)

planner_options = joined(
    preset_option,
    click.option("--ctx", "n_ctx", type=Count(),
                 help="Context length in tokens, such as 32k. [from the preset, else up to 8192 "
                      "per slot]"),
    kv_options,
    backend_choice,
    set_option,
    click.option("--type-k", type=OPEN_KV_TYPE, help="Type of the K cache."),
    click.option("--type-v", type=OPEN_KV_TYPE, help="Type of the V cache."),
    click.option("--flash-attention", type=click.Choice(["on", "off", "auto"]),
                 help="Flash attention."),
    click.option("--batch", "n_batch", type=Count(1, 65536), help="Tokens per batch."),
    click.option("--ubatch", "n_ubatch", type=Count(1, 65536),
                 help="Tokens per ubatch."),
    slots_option,
    click.option("--unified", "kv_unified", is_flag=True, default=None,
                 help="Share one KV cache among all slots."),
    click.option("--swa-full", is_flag=True, default=None,
                 help="Use a full-size KV cache for sliding-window layers."),
    click.option("--gpu-layers", "n_gpu_layers", type=Layers(has_auto=True),
                 help="Layers on the GPU, including the output layer. [as many as fit]"),
    click.option("--cpu-moe", "n_cpu_moe", flag_value="all", type=Layers(),
                 help="Keep the experts of all layers in RAM."),
    click.option("--n-cpu-moe", "n_cpu_moe", type=Layers(),
                 help="Keep the experts of the first N layers in RAM."),
    click.option("--no-kv-offload", "offload_kqv", flag_value=False, default=None, type=bool,
                 help="Keep the KV cache in RAM."),
    click.option("--split-mode", type=click.Choice(["layer", "none"]),
                 help="layer: split the layers over the GPUs; none: use only the main GPU."),
    click.option("--main-gpu", type=Count(0, 15), help="Index of the main GPU."),
    click.option("--tensor-split", type=SHARES, help="Share of the layers for each GPU, such as "
                                                     "3:1."),
    draft_option,
    click.option("--mtp", "n_mtp_draft", type=Count(0, 16),
                 help="Draft length of the model's MTP head (llama-server only)."),
    mmproj_option,
    click.option("--no-mmproj-offload", "mmproj_offload", flag_value=False, default=None,
                 type=bool, help="Keep the projector in RAM."),
    click.option("--lora", type=ADAPTER, multiple=True,
                 help="LoRA adapter and its scale; repeatable."),
    threads_option,
)  # fmt: skip
"""Every option of the planner, by the preset's own keys."""


def setup_of_options(
    model: str | None, target: Target, planner: Planner, options: Mapping[str, object]
) -> Setup:
    """The setup that the machine's options and the options describe.

    Raises:
        UsageError: neither a model nor a preset is named.
        EngineError: the model, the preset or a card is not there, or cannot be read.
    """
    if model is None and options["preset"] is None:
        raise click.UsageError("specify MODEL, or a --preset that contains a model")
    asked = PlanRequest(
        model=model,
        target=target,
        draft=_text(options["draft"]),
        machine=machine_of(options),
        margin_bytes=whole(options["margin"]),
        rules=_rules(options),
    )
    with Progress() as reading:
        return setup_of(asked, planner, _preset(options), progress=reading.header)


def types_notes(plan: Plan, options: Mapping[str, object]) -> tuple[str, ...]:
    """Why the cache has its types and what that rests on; empty where they were named."""
    if open_types(_preset(options).model_copy(update=_rules(options))) is None:
        return ()
    return (types_text(plan.setup.configuration, plan.known),)


def _preset(options: Mapping[str, object]) -> Preset:
    """The named preset, with what the settings say where it says nothing."""
    name = options["preset"]
    rules = None if name is None else find_preset(str(name), presets_dir())
    return with_settings(rules, load_settings().settings)


def _rules(options: Mapping[str, object]) -> dict[str, object]:
    """What the options say, by the keys of a preset."""
    named = {"preset", "draft", "kv", "kv_budget", "n_threads", "rules", *MACHINE}
    rules = type_rules(_text(options["kv"]), whole(options["kv_budget"]))
    rules |= thread_rules(cast(AskedThreads, options["n_threads"]))
    rules |= cast("dict[str, object]", options["rules"])
    return rules | {
        name: _plain(value)
        for name, value in options.items()
        if name not in named and value is not None and value != ()
    }


def machine_of(options: Mapping[str, object]) -> PlannedMachine:
    """The machine that the options describe.

    Raises:
        HardwareError: a card is not known.
    """
    vram, cards, net = options["vram"], options["cards"], options.get("net")
    assert isinstance(vram, tuple)
    assert isinstance(cards, tuple)
    typed = tuple(chain.from_iterable(vram))
    sizes, named = named_gpus(typed)
    return PlannedMachine(
        sizes,
        (*named, *(find_card(card).name for card in cards)),
        whole(options["ram"]),
        next((name for name in CPUS if name == options["cpu"]), None),
        has_gpu=not options.get("no_gpu"),
        workers=workers_of(typed),
        net_gbps=net if isinstance(net, float) else 1.0,
    )


def whole(value: object) -> int | None:
    """An option's number, None where it was not given."""
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> object:
    """A value as presets have it: paths are texts there."""
    match value:
        case Path():
            return str(value)
        case tuple():
            return tuple(map(_plain, value))
        case _:
            return value


plan_options = joined(
    machine_options,
    planner_options,
    click.option("--target", type=click.Choice(["kvchat", "llama-server"]), default="kvchat",
                 show_default=True, help="Program that runs the model."),
    click.option("--dry-run", is_flag=True,
                 help="Measure sizes with a dry run of llama.cpp, which loads no weights."),
    json_option,
)  # fmt: skip


@click.command(name="plan")
@click.argument("model")
@plan_options
def command(
    model: str,
    *,
    target: Target,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Compute the memory of MODEL on each device and the largest context that fits.

    MODEL is a path, a name from `kvchat models`, a catalogue name such as qwen3-8b:Q4_K_M, a URL,
    or hf:owner/repository/file.gguf; hf:owner/repository lists all files and whether they fit.
    No model is loaded; only the header of a remote file is read. `=` marks exact numbers, `*`
    results of a dry run, `~` estimates. The exit code is 0 even if the model does not fit.

    \b
    kvchat plan qwen2.5-7b --vram 8GiB --ctx 32k
    kvchat plan qwen3-8b:Q4_K_M --card "RTX 3060"
    kvchat plan hf:owner/repository/file.gguf
    kvchat plan qwen3-30b-a3b --vram 12GiB --cpu-moe
    kvchat plan qwen2.5-7b --target llama-server --slots 4 --type-k q8_0
    kvchat plan qwen3-32b --device host1:24GiB --device host2:2x24GiB --net 10
    """  # noqa: D301  click wants the backspace character itself
    planner = user_planner()
    repository = parse_hub_name(model)
    if repository is not None and repository.file is None:
        _check_for_repository({**options, "dry_run": dry_run})
        _print_repository(repository, target, planner, as_json=as_json, options=options)
        return
    plan = planner.plan(setup_of_options(model, target, planner, options))
    if dry_run:
        plan = _dry_run(plan)
    _print(plan, planner, as_json=as_json)
    for note in types_notes(plan, options):
        log_line(note)


def _dry_run(plan: Plan) -> Plan:
    """The plan with what llama.cpp itself says that it would allocate."""
    if not can_measure(plan):
        raise click.UsageError(
            "--dry-run measures a local file on the devices of this machine: specify a file, and "
            "leave out --vram, --card, --ram and presets with vram_gib"
        )
    return measured_plan(plan)


def _print(plan: Plan, planner: Planner, *, as_json: bool) -> None:
    if as_json:
        print_json(plan_json(plan, planner))
    else:
        print_plan(plan, planner)


def _print_repository(
    asked: HubName,
    target: Target,
    planner: Planner,
    *,
    as_json: bool,
    options: Mapping[str, object],
) -> None:
    """Print every model of a repository with its verdict by the options."""
    n_slots = whole(options["n_slots"]) or 1
    n_ctx = whole(options["n_ctx"]) or AUTO_N_CTX * n_slots
    fixed = {**options, "n_ctx": n_ctx, "mmproj": "off"}
    try:
        with Progress().hub() as reading:
            offer = read_offer(
                asked,
                planner,
                reading.header,
                setup_of=lambda address: setup_of_options(address, target, planner, fixed),
            )
    except DownloadError as error:
        raise RemoteFileError(str(error)) from error
    from app.cli.models import print_offer  # imports rich, which plans of one file do not need

    print_offer(offer, as_json=as_json)


def _check_for_repository(options: Mapping[str, object]) -> None:
    """Refuse options that have no meaning for a list of files.

    Raises:
        UsageError: there are some.
    """
    none = (None, (), False)
    given = [flag for name, flag in OF_ONE_FILE.items() if options.get(name) not in none]
    if given:
        raise click.UsageError(
            f"{', '.join(given)} can be used only with a single file, not with a repository: write "
            "hf:owner/repository/file.gguf"
        )
