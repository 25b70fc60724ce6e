"""`kvchat plan`, and the options that `export` and `fit` have in common with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import get_args

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
    gathered,
    joined,
    json_option,
    kv_options,
    mmproj_option,
    opens_model,
    preset_option,
    refuse_typed,
    set_option,
    threads_option,
)
from app.cli.plan_output import print_plan
from app.config import load_settings
from app.console import Progress, log_line, print_json
from app.library import read_offer
from app.opening import ModelRequest
from app.paths import presets_dir
from app.planning import user_planner, with_settings
from engine.memory.cards import TypedGpu, find_card
from engine.memory.hardware import Instructions
from engine.memory.terms import Target
from engine.model.hub import DownloadError, HubName, parse_hub_name
from engine.model.remote import RemoteFileError
from engine.planning.cache_types import open_types, types_text
from engine.planning.machine import PlannedMachine, named_gpus
from engine.planning.measured import can_measure, measured_plan
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.report import plan_json
from engine.planning.request import PlanRequest, setup_of
from engine.planning.resolve import AUTO_N_CTX
from engine.planning.workers import workers_of
from engine.presets.library import find_preset
from engine.presets.preset import Preset

CPUS = get_args(Instructions)
OF_ONE_FILE = {"dry_run", "draft", "mmproj", "lora", "n_mtp_draft", "n_gpu_layers", "n_cpu_moe"}
"""Options that cannot be used with a repository."""

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
    gathered("machine", "app.cli.plan:MachineOptions"),
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
    opens_model,
)  # fmt: skip
"""Every option of the planner, by the keys of a preset."""


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The machine that was typed."""

    vram: tuple[tuple[TypedGpu, ...], ...]
    net: float
    cards: tuple[str, ...]
    ram: int | None
    cpu: Instructions | None
    margin: int | None
    """Bytes to leave free; None is the default."""
    no_gpu: bool = False

    @property
    def machine(self) -> PlannedMachine:
        """The machine to plan for."""
        typed = tuple(chain.from_iterable(self.vram))
        sizes, names = named_gpus(typed)
        return PlannedMachine(
            sizes,
            (*names, *(find_card(card).name for card in self.cards)),
            self.ram,
            self.cpu,
            has_gpu=not self.no_gpu,
            workers=workers_of(typed),
            net_gbps=self.net,
        )


def setup_of_options(
    asked: ModelRequest,
    machine: MachineOptions,
    target: Target,
    planner: Planner,
    options: Mapping[str, object],
) -> Setup:
    """The setup of the typed model, machine and preset keys."""
    if asked.model is None and asked.preset is None:
        raise click.UsageError("specify MODEL, or a --preset that contains a model")
    request = PlanRequest(
        model=asked.model,
        target=target,
        draft=asked.draft,
        machine=machine.machine,
        margin_bytes=machine.margin,
        rules=_rules(asked, options),
    )
    with Progress() as progress:
        return setup_of(request, planner, _preset(asked), progress=progress.header)


def types_notes(plan: Plan, asked: ModelRequest, options: Mapping[str, object]) -> tuple[str, ...]:
    """Why the cache has its types; empty if they were named."""
    if open_types(_preset(asked).model_copy(update=_rules(asked, options))) is None:
        return ()
    return (types_text(plan.setup.configuration, plan.known),)


def _preset(asked: ModelRequest) -> Preset:
    """The named preset; user settings fill its unset keys."""
    rules = None if asked.preset is None else find_preset(asked.preset, presets_dir())
    return with_settings(rules, load_settings().settings)


def _rules(asked: ModelRequest, options: Mapping[str, object]) -> dict[str, object]:
    """The typed values by keys of a preset."""
    return asked.preset_rules() | {
        name: value for name, value in options.items() if value not in (None, ())
    }


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
    asked: ModelRequest,
    machine: MachineOptions,
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

    def setup(request: ModelRequest) -> Setup:
        return setup_of_options(request, machine, target, planner, options)

    repository = parse_hub_name(asked.model or "")
    if repository is not None and repository.file is None:
        why = "these options need one file (hf:owner/repository/file.gguf), not a repository"
        refuse_typed(why, OF_ONE_FILE.__contains__)
        n_ctx = asked.n_ctx or AUTO_N_CTX * int(str(options["n_slots"] or 1))
        usual = replace(asked, n_ctx=n_ctx, mmproj="off")
        _print_repository(
            repository, planner, lambda model: setup(replace(usual, model=model)), as_json=as_json
        )
        return
    plan = planner.plan(setup(asked))
    if dry_run:
        if not can_measure(plan):
            raise click.UsageError(
                "--dry-run measures a local file on the devices of this machine: specify a file, "
                "and leave out --vram, --card, --ram and presets with vram_gib"
            )
        plan = measured_plan(plan)
    if as_json:
        print_json(plan_json(plan, planner))
    else:
        print_plan(plan, planner)
    for note in types_notes(plan, asked, options):
        log_line(note)


def _print_repository(
    asked: HubName, planner: Planner, setup_of: Callable[[str], Setup], *, as_json: bool
) -> None:
    try:
        with Progress().hub() as progress:
            offer = read_offer(asked, planner, progress.header, setup_of=setup_of)
    except DownloadError as error:
        raise RemoteFileError(str(error)) from error
    from app.cli.models import print_offer  # imports rich, which plans of one file do not need

    print_offer(offer, as_json=as_json)
