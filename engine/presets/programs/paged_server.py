"""What vLLM and SGLang have in common: GPUs that share a model, and a cache in pages on each.

Tensor parallelism cuts every layer among the GPUs of one machine, pipeline parallelism gives each
machine a run of layers (vLLM's `docs/serving/parallelism_scaling.md`). Each GPU keeps its part of
the keys and values, whole heads, so those of fewer heads than GPUs are kept several times.
"""

import platform
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from engine.configuration import Configuration, ControllerName
from engine.memory.hardware import Device
from engine.memory.kv_cache import kv_type
from engine.memory.units import GIB, format_bytes
from engine.model.architecture import Architecture, Model
from engine.presets.programs.base import (
    Companion,
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.remarks import IN_REQUESTS, Drafter, drafters, drafting_remarks, shown
from engine.presets.programs.shell import lines_of

HALF_BYTES, QUARTER_BYTES = 2, 1
"""Bytes of a cached number in 16 and in 8 bits."""
MOST_UTILIZATION = 0.95
"""Of a GPU's memory; the rest is the driver's."""
TIER_SHARE = 0.5
"""Of the free main memory, for a second tier of the cache."""
LEAST_TIER_BYTES = 4 * GIB
CONSEQUENCES = {
    "kv_unified": "and pages of the cache are all users' anyway",
    "swa_full": "and layers with a sliding window keep their window only",
    "offload_kqv": "and the cache lies on the GPUs",
    "n_cpu_moe": "and experts lie on the GPUs",
    "tensor_overrides": "and every tensor lies with its layer",
    "tensor_split": "and all GPUs get equal parts",
    "split_mode": "and all GPUs get equal parts",
    "main_gpu": "and all GPUs get equal parts",
    "rpc_workers": "and its own processes run on the other machines instead",
    "mmproj_path": "and takes the vision part of the original weights",
    "n_threads": "and its processors only prepare the work",
    "n_threads_batch": "and its processors only prepare the work",
    "use_mmap": "and the weights lie on the GPUs",
    "use_extra_buffers": "and nothing is repacked",
}
_USUAL = Configuration(Path("model.gguf"), 1)
_HUB = re.compile(r"https?://huggingface\.co/([\w.-]+/[\w.-]+)")


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A machine with its GPUs."""

    host: str
    gpus: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """How a model and its cache lie on the GPUs."""

    nodes: tuple[GpuNode, ...]
    n_tensor: int
    """GPUs that share each layer."""
    n_pipeline: int
    """Runs of layers, one behind the other."""
    weight_bytes: int
    """Weights on each GPU, about."""
    token_bytes: int
    """Keys and values of one token on each GPU."""
    page_tokens: int

    @property
    def n_gpus(self) -> int:
        """GPUs that work together."""
        return self.n_tensor * self.n_pipeline

    @property
    def is_even(self) -> bool:
        """Whether all machines have as many GPUs."""
        return len({len(node.gpus) for node in self.nodes}) == 1

    def pages(self, n_tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-n_tokens // self.page_tokens)

    def cache_bytes(self, n_tokens: int) -> int:
        """The cache of so many tokens on each GPU."""
        return self.pages(n_tokens) * self.page_tokens * self.token_bytes


def spread_of(request: ExportRequest, page_tokens: int) -> Spread:
    """How the model of a request lies on its GPUs; on one where none is known."""
    gpus = request.gpus or (Device("GPU", "gpu", 0, 0),)
    hosts = sorted(dict.fromkeys(gpu.worker for gpu in gpus), key=bool)  # this machine first
    nodes = tuple(
        GpuNode(
            host.rpartition(":")[0] or platform.node(),
            tuple(gpu for gpu in gpus if gpu.worker == host),
        )
        for host in hosts
    )
    n_heads = None if request.model is None else request.model.architecture.n_heads
    n_tensor = gcd(*(len(node.gpus) for node in nodes))
    while n_heads and n_heads % n_tensor:
        n_tensor -= 1  # whole heads; the GPUs that are left make further runs of layers
        n_tensor = gcd(n_tensor, *(len(node.gpus) for node in nodes))
    n_pipeline = len(gpus) // n_tensor
    model = request.model
    weights = 0 if model is None else sum(tensor.nbytes for tensor in model.file.tensors)
    per_token = 0 if model is None else _token_bytes(
        model.architecture, number_bytes(request.configuration), n_tensor, n_pipeline
    )  # fmt: skip
    return Spread(nodes, n_tensor, n_pipeline, weights // len(gpus), per_token, page_tokens)


@dataclass(frozen=True, slots=True)
class PagedServer:
    """What a program calls things, and what it says otherwise than the other."""

    program: str
    heading: str
    """The program and its version."""
    page_tokens: int
    pages: str
    """Its word for them."""
    command: tuple[str, ...]
    """The words before the path of the model."""
    tokenizer: str
    name: str
    n_ctx: str
    """The flag of a chat's tokens; those before and behind are flags too."""
    n_slots: str
    share: str
    """Of the memory that may be used."""
    n_tensor: str
    n_pipeline: str
    eight_bits: str
    """Type of a cache in 8 bits."""
    adapters: tuple[str, ...]
    counts: tuple[str, ...]
    """What makes it tell counts that kvchat shows."""
    offered: tuple[Drafter, ...]
    """What can draft, one at a time."""
    nodes: Callable[[Spread, int], Iterator[str]]
    """The words that join several machines, for one of them by its number."""
    drafts: Callable[[Configuration, tuple[Drafter, ...]], Iterator[str]]
    """The words that make what drafts do so."""
    remarks: Callable[[ExportRequest, Spread], Iterator[str]]
    """What is said of it alone."""

    def render(self, request: ExportRequest) -> Exported:
        """A script of the first machine; those of the others come beside it.

        Raises:
            ExportError: a path that cannot be written, or machines that it cannot join.
        """
        request = with_absolute_paths(request)
        spread = spread_of(request, self.page_tokens)
        remarks = tuple(self._remarks(request, spread))
        n_scripts = len(spread.nodes) if spread.is_even else 1
        first, *others = (_script(self._words(request, spread, n)) for n in range(n_scripts))
        said = (
            f"{request.name}, planned by kvchat for {self.heading}",
            *remarks,
            *request.warnings,
        )
        companions = tuple(
            Companion(f"{slug(request.name)}.{slug(node.host)}.sh", f"#!/bin/sh\n{script}")
            for node, script in zip(spread.nodes[1:], others, strict=False)
        )
        return Exported(f"#!/bin/sh\n{comments(said)}{first}", remarks, companions=companions)

    def _words(self, request: ExportRequest, spread: Spread, rank: int) -> list[str]:
        configuration = request.configuration
        tokenizer = tokenizer_of(request.model)
        words = [*self.command, writable(str(configuration.model_path))]
        words += [] if tokenizer is None else [self.tokenizer, tokenizer]
        words += [self.name, slug(request.name)]
        words += [self.n_ctx, str(n_ctx_of_chat(configuration))]
        words += [self.n_slots, str(configuration.n_slots)]
        words += [self.share, f"{utilization(request):g}"]
        if number_bytes(configuration) < HALF_BYTES:
            words += ["--kv-cache-dtype", self.eight_bits]
        for flag, n_gpus in (
            (self.n_tensor, spread.n_tensor),
            (self.n_pipeline, spread.n_pipeline),
        ):
            words += [flag, str(n_gpus)] if n_gpus > 1 else []
        if len(spread.nodes) > 1:
            words += self.nodes(spread, rank)
        words += self.drafts(configuration, self._drafting(configuration))
        if configuration.adapters:
            words += [*self.adapters, *named_adapters(configuration)]
        return [*words, *self.counts, "--host", writable(request.host), "--port", str(request.port)]

    def _remarks(self, request: ExportRequest, spread: Spread) -> Iterator[str]:
        yield from sizes_text(request, spread, self.pages)
        yield from lost(request, spread, self.program)
        configuration = request.configuration
        drafting = self._drafting(configuration)
        n_draft = n_drafted(configuration, drafting)
        yield from drafting_remarks(configuration, self.program, drafting, n_draft)
        yield from self.remarks(request, spread)

    def _drafting(self, configuration: Configuration) -> tuple[Drafter, ...]:
        return drafters(configuration, self.offered)[:1]


def n_drafted(configuration: Configuration, drafting: tuple[Drafter, ...]) -> int:
    """Tokens of a draft: the fixed length, or the longest there may be out of the text."""
    speculation = configuration.speculation
    is_open = "lookup" in drafting and speculation.controller is not ControllerName.FIXED
    return speculation.n_draft_max if is_open else speculation.n_draft


def machines_text(spread: Spread) -> str:
    """The machines with the number of their GPUs."""
    return ", ".join(f"{node.host} {len(node.gpus)}" for node in spread.nodes)


def _script(words: Sequence[str]) -> str:
    body = " \\\n  ".join(shlex.join(line) for line in lines_of(list(words)))
    return f'exec {body} \\\n  "$@"\n'


def number_bytes(configuration: Configuration) -> int:
    """Bytes of a cached number: 1 where 8 bits or less were planned for keys and values."""
    widest = max(kv_type(each).bits for each in (configuration.type_k, configuration.type_v))
    return QUARTER_BYTES if widest <= kv_type("q8_0").bits else HALF_BYTES


def _token_bytes(architecture: Architecture, number: int, n_tensor: int, n_pipeline: int) -> int:
    """Of the GPU with the most layers; heads that are fewer than GPUs are on several."""
    layers = list(architecture.layers.values())
    n_most = -(-len(layers) // n_pipeline)
    rows = [
        max(-(-layer.n_kv_heads // n_tensor), 1) * (layer.k_head_dim + layer.v_head_dim)
        for layer in layers
    ]
    return number * sum(sorted(rows)[-n_most:])


def n_ctx_of_chat(configuration: Configuration) -> int:
    """Tokens of one chat."""
    return max(configuration.n_ctx // configuration.n_slots, 1)


def utilization(request: ExportRequest) -> float:
    """The share of the smallest GPU that may be used: what is free of it without the margin."""
    shares = [
        (gpu.free_bytes - request.margin_bytes) / gpu.total_bytes
        for gpu in request.gpus
        if gpu.total_bytes
    ]
    return max(int(100 * min([*shares, MOST_UTILIZATION])) / 100, 0.05)


def tier_gib(request: ExportRequest) -> int:
    """GiB of main memory for a second tier of the cache; 0 where too little is known or free."""
    nbytes = TIER_SHARE * request.ram_free_bytes
    return int(nbytes // GIB) if nbytes >= LEAST_TIER_BYTES else 0


def tokenizer_of(model: Model | None) -> str | None:
    """The repository of the original weights, where the file's header names it."""
    keys = ("general.base_model.0.repo_url", "general.repo_url", "general.source.repo_url")
    for key in keys:
        url = None if model is None else model.file.text(key)
        if match := _HUB.match(url or ""):
            return match[1]
    return None


def named_adapters(configuration: Configuration) -> list[str]:
    """Each adapter as `NAME=PATH`.

    Raises:
        ExportError: a path that cannot be written.
    """
    return [f"{slug(each.path.stem)}={writable(str(each.path))}" for each in configuration.adapters]


def sizes_text(request: ExportRequest, spread: Spread, pages: str) -> Iterator[str]:
    """What lies on each GPU, and how many pages the plan needs."""
    configuration = request.configuration
    if not spread.token_bytes:
        return
    n_tokens = n_ctx_of_chat(configuration) * configuration.n_slots
    yield (
        f"each of {spread.n_gpus} GPUs holds about {format_bytes(spread.weight_bytes)} of weights "
        f"and {format_bytes(spread.cache_bytes(n_tokens))} of keys and values: "
        f"{spread.pages(n_tokens):,} {pages} of {spread.page_tokens} tokens, "
        f"{spread.token_bytes:,} bytes a token"
    )


def lost(request: ExportRequest, spread: Spread, program: str) -> Iterator[str]:
    """What a plan loses on its way to either program."""
    configuration = request.configuration
    for name, consequence in CONSEQUENCES.items():
        value: object = getattr(configuration, name)
        if value != getattr(_USUAL, name):
            yield f"{name} is {shown(value)}: {program} has no setting for it, {consequence}"
    for name in IN_REQUESTS:
        if (value := getattr(configuration.sampling, name)) != getattr(_USUAL.sampling, name):
            yield f"{name} is {shown(value)}: {program} takes it with each request, if at all"
    scaled = [adapter.text for adapter in configuration.adapters if adapter.scale != 1.0]
    if scaled:
        yield f"lora is {', '.join(scaled)}: {program} takes each adapter at 1"
    types = {configuration.type_k, configuration.type_v}
    if types - {"f16", "bf16"}:
        k, v, bits = configuration.type_k, configuration.type_v, 8 * number_bytes(configuration)
        yield f"type_k is {k} and type_v is {v}: {program} keeps both in {bits} bits"
    if not request.uses_gpu or 0 <= configuration.n_gpu_layers < (request.n_layers or 0):
        yield f"{program} lays all layers on GPUs: none in main memory, as the plan has it"
    if request.model is not None and tokenizer_of(request.model) is None:
        yield "the file does not name its original weights: say their tokenizer with --tokenizer"
    sampling = configuration.sampling
    yield (
        f"{program} takes temperature {sampling.temperature:g} and the other sampling with each "
        "request; kvchat sends it"
    )
    if len(spread.nodes) > 1:
        hosts = " and ".join(node.host for node in spread.nodes)
        yield (
            f"{hosts} each need the program in the same version and the model at the same path, on "
            "a net that nobody else can reach: their connections are neither encrypted nor checked"
        )
