"""All settings of a running model, each defined once: name, type, bounds, default and meaning.

A preset has the fields of `EngineSettings` as rules; a `Configuration` has them as numbers, from
which sessions, estimates and exports are made.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from engine.errors import PresetError
from engine.files import expanded

Target = Literal["kvchat", "llama-server"]
"""Program that runs a configuration: slots, rows of logits and window caches differ."""

BackendName = Literal["llama.cpp", "torch"]
ComputeType = Literal["auto", "f32", "bf16", "f16"]
CompileMode = Literal["off", "auto", "on"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "none"]
Thinking = Literal["auto", "off"]
Verification = Literal["coupled", "rejection"]
KVTypeName = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

MAX_COUNT = 2**31 - 1
"""The largest count: llama.cpp stores counts in 32 bits."""
MAX_DRAFT = 16
"""Maximum tokens of a draft; `n_outputs_max` of the target is one more."""
MAX_PATTERN, MAX_BATCH, MAX_SLOTS, MAX_DEVICES = 64, 65536, 256, 128
WORKER = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}:[0-9]{1,5}$"
"""Address of an RPC worker; llama.cpp splits it at the first colon, which excludes IPv6."""


class Bounds:
    """Bounds of a value by pydantic's names: `ge`, `le`, `gt`, `lt`, `pattern` and so on.

    Presets are checked with pydantic, which this module does not import: that takes longer than
    many commands.
    """

    __slots__ = ("limits",)

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], dict[str, object]]
    ) -> dict[str, object]:
        return {**handler(source), **self.limits}

    def __str__(self) -> str:
        """The range in words: `0 to 10`, `above 0, to 1`, `0 to below 1`, `0 or more`."""
        low = self.limits.get("ge", f"above {self.limits.get('gt')},")
        if self.limits.get("le", 0) >= MAX_COUNT:
            return f"{low} or more"
        high = self.limits.get("le", f"below {self.limits.get('lt')}")
        return f"{low} to {high}"

    def allow(self, value: float) -> bool:
        """Whether a number is within the bounds; never true for NaN."""
        compared = self.limits.keys() & {"ge", "gt", "le", "lt"}
        return all(getattr(operator, name)(value, self.limits[name]) for name in compared)


STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""How pydantic reads these dataclasses: no unknown keys, no NaN or infinity."""
Count = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]
DraftLength = Annotated[int, Bounds(ge=1, le=MAX_DRAFT)]
PatternLength = Annotated[int, Bounds(ge=1, le=MAX_PATTERN)]
Batch = Annotated[int, Bounds(ge=1, le=MAX_BATCH)]
DECODE_PLAN = r"^(auto|[1-9][0-9]{0,5}(/[1-9][0-9]{0,8})?)$"
DecodePlanName = Annotated[str, Bounds(pattern=DECODE_PLAN)]
KV_CACHE = r"^[a-z0-9_]{1,32}(/[a-z0-9_]{1,32})?$"
KVCacheName = Annotated[str, Bounds(pattern=KV_CACHE)]
Probability = Annotated[float, Bounds(ge=0.0, le=1.0)]
Temperature = Annotated[float, Bounds(ge=0.0, le=10.0)]
TopP = Annotated[float, Bounds(gt=0.0, le=1.0)]
MinP = Annotated[float, Bounds(ge=0.0, lt=1.0)]
RepetitionPenalty = Annotated[float, Bounds(gt=0.0, le=10.0)]


KV_TYPE_NAMES: tuple[KVTypeName, ...] = get_args(KVTypeName)
KV_KIND = r"^[a-z0-9_]{1,32}$"
KVKindName = Annotated[str, Bounds(pattern=KV_KIND)]


@dataclass(frozen=True, slots=True, order=True)
class KVTypes:
    """Types of the cached keys and values: names of `KVTypeName` or of torch cache types."""

    __pydantic_config__ = STRICT

    k: KVKindName
    v: KVKindName

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse llama.cpp types: `q8_0` for both, `q8_0/q4_0` for keys and values."""
        names = [part.strip().lower() for part in text.split("/")]
        if len(names) > 2 or not set(names) <= set(KV_TYPE_NAMES):
            raise PresetError(
                f"{text!r} is not a cache type: write one of {', '.join(KV_TYPE_NAMES)}, or "
                "two such as q8_0/q4_0"
            )
        return cls(names[0], names[-1])

    def __str__(self) -> str:
        """`q8_0` if both are equal, else `q8_0/q5_1`: keys, then values."""
        return self.k if self.k == self.v else f"{self.k}/{self.v}"

    @property
    def are_of_llama_cpp(self) -> bool:
        """Whether llama.cpp has both types."""
        return {self.k, self.v} <= set(KV_TYPE_NAMES)


class PredictorName(StrEnum):
    """The predictors that a session can draft with."""

    OFF = "off"
    LOOKUP = "lookup"
    SUFFIX = "suffix"
    COMBINED = "combined"
    DRAFT = "draft"
    CUSTOM = "custom"
    """A predictor object passed to the `Session`."""


PREDICTORS = tuple(name.value for name in PredictorName if name is not PredictorName.CUSTOM)
HEADS = ("mtp", "draft-mtp", "eagle3", "draft-eagle3")
"""Other programs' names for draft heads, which kvchat does not support."""


def predictor_named(name: str) -> PredictorName:
    """The predictor that a user chooses by `name`.

    Raises:
        PresetError: there is no such predictor; the message lists the names.
    """
    name = name.strip()
    if name in PREDICTORS:
        return PredictorName(name)
    known = ", ".join(PREDICTORS)
    if name in HEADS:
        raise PresetError(
            f"{name} drafts with a head on the target's hidden states, which kvchat cannot run. "
            f"Choose one of {known}. llama-server can run a head (--spec-type draft-mtp): set "
            "n_mtp_draft in the preset and use `kvchat export`"
        )
    raise PresetError(f"there is no predictor {name!r}: use one of {known}")


class ControllerName(StrEnum):
    """The rules that set the draft length."""

    FIXED = "fixed"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The predictor, the draft length and how drafts are verified."""

    __pydantic_config__ = STRICT

    predictor: PredictorName = PredictorName.SUFFIX
    controller: ControllerName = ControllerName.AUTO
    n_draft: DraftLength = 3
    """Tokens of each draft with the fixed controller; `auto` sets its own length."""
    n_draft_max: DraftLength = 8
    """Longest draft in other programs if the length is not fixed; kvchat ignores it."""
    lookup_pattern_min: PatternLength = 5
    """Shortest n-gram that the look-up matches. On two processor cores a drafted token costs half a
    plain step; drafts after five matching tokens are accepted often enough for that."""
    lookup_pattern_max: PatternLength = 16
    """Longest n-gram that the look-up matches."""
    lookup_length_min: DraftLength = 1
    """Minimum tokens after an earlier occurrence for the look-up to copy them."""
    lookup_length_max: DraftLength = MAX_DRAFT
    """Maximum tokens that the look-up copies, whatever the draft length."""
    suffix_min_confidence: Probability = 0.7
    """A suffix draft ends when the probability that all its tokens are accepted falls below this; 0
    never ends. On two processor cores 0.5 to 0.8 gain the same; 0.7 drafts fewer tokens than 0.5.
    """
    draft_min_tokens: Annotated[int, Bounds(ge=0, le=MAX_DRAFT)] = 0
    """Tokens that a draft model proposes regardless of its confidence."""
    draft_min_confidence: Probability = 0.6
    """A draft model stops drafting below this probability; 0 never stops."""
    min_acceptance: Probability = 0.0
    """Drafts end for the reply if a smaller share of its drafted tokens was accepted; 0 is off."""
    verification: Verification = "coupled"
    """Verification above temperature 0: `coupled` gives the same text as no draft; `rejection`
    accepts more and preserves the distribution of the text, not the text."""
    bonus_token: bool = True
    """Whether the target adds a bonus token to a completely accepted draft."""

    @property
    def drafts_from_text(self) -> bool:
        """Whether drafts are copied from the chat, as by the n-gram look-up of other programs."""
        others = (PredictorName.OFF, PredictorName.DRAFT, PredictorName.CUSTOM)
        return self.predictor not in others

    @property
    def n_draft_of_server(self) -> int:
        """Maximum tokens that llama-server drafts in one round with these settings.

        Its `ngram-simple` drafts nothing if the draft would be shorter than the pattern
        (`common_ngram_simple_draft`), so the maximum is at least the pattern's length.
        """
        if not self.drafts_from_text:
            return self.n_draft if self.predictor is PredictorName.DRAFT else 0
        is_fixed = self.controller is ControllerName.FIXED
        wanted = self.n_draft if is_fixed else self.n_draft_max
        if self.predictor is PredictorName.LOOKUP:
            wanted = min(wanted, self.lookup_length_max)
        return max(wanted, self.lookup_pattern_min)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling parameters, applied in the order of the fields, and constraints of the reply.

    Temperature 0 is greedy: a one-hot at the largest logit after penalties.
    """

    __pydantic_config__ = STRICT

    repetition_penalty: RepetitionPenalty = 1.0
    """Divides positive and multiplies negative logits of recent tokens; 1 is off."""
    repetition_window: Count = 64
    """Number of recent tokens that are penalised; 0 is off."""
    temperature: Temperature = 0.0
    top_k: Count = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    json_schema: str = ""
    """Path of a JSON schema that the reply satisfies; empty is none."""
    grammar: str = ""
    """Path of a grammar, GBNF or Lark, that the reply satisfies; empty is none."""
    stop_tokens: tuple[Count, ...] = ()
    """Ids of tokens that end the reply, in addition to the model's end tokens."""
    thinking: Thinking = "auto"
    """Whether a reasoning model thinks before it answers: `auto` is the template's default."""
    thinking_budget: Count = 0
    """Maximum thinking tokens of a reply, after which thinking is closed; 0 is no limit."""

    def with_absolute_paths(self) -> "SamplingSettings":
        """These settings with absolute paths."""
        schema, grammar = (
            str(expanded(path).absolute()) if path else ""
            for path in (self.json_schema, self.grammar)
        )
        return replace(self, json_schema=schema, grammar=grammar)


def check_settings(settings: SamplingSettings | SpeculationSettings) -> None:
    """Raise a `PresetError` with each value that is out of its bounds."""
    kind: object = type(settings)
    wrong = [
        f"{name} is {value}, allowed: {bounds}"
        for name, bounds in bounds_of(kind).items()
        if not bounds.allow(value := getattr(settings, name))
    ]
    if wrong:
        raise PresetError("; ".join(wrong))


@cache
def bounds_of(kind: Any) -> Mapping[str, Bounds]:
    """Bounds of a settings class by field name; fields without bounds are left out."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: bounds
        for name, hint in hints.items()
        for bounds in getattr(hint, "__metadata__", ())
        if isinstance(bounds, Bounds)
    }


DRAFT_N_CTX = 4096
"""Default context of a draft model, which reads the end of a longer sequence."""


@dataclass(frozen=True, slots=True)
class DraftConfiguration:
    """The draft model and its context."""

    model_path: Path
    n_ctx: int
    """Context in tokens; of a longer sequence it reads the end."""
    n_gpu_layers: int = -1
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter (LoRA) of the model and its scale."""

    path: Path
    scale: float = 1.0
    """Factor of its change of the weights; 1 is as trained, 0 turns it off."""

    @classmethod
    def read(cls, text: str) -> "Adapter":
        """Parse `FILE[:SCALE]`: a number after the last colon is the scale."""
        path, _, scale = text.rpartition(":")
        try:
            number = float(scale)
        except ValueError:
            number = nan
        if not path or not isfinite(number):
            return cls(expanded(text))
        return cls(expanded(path), number)

    @property
    def text(self) -> str:
        """Format for `read`: `FILE[:SCALE]`."""
        if self.scale == 1.0 and Adapter.read(str(self.path)).path == self.path:
            return str(self.path)
        return f"{self.path}:{self.scale!r}"


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Device of the tensors whose name matches: llama.cpp's `--override-tensor`."""

    __pydantic_config__ = STRICT

    pattern: Annotated[str, Bounds(pattern=r"^[^,=]+$")]
    """Regular expression searched in the tensor's name; llama.cpp splits at `,` and `=`."""
    device: Annotated[str, Bounds(min_length=1)] = "CPU"
    """`CPU`, or a GPU such as `GPU 0`; llama.cpp calls it CUDA0, Vulkan0 and so on."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How a model runs: the settings that presets and configurations share."""

    backend: BackendName = "llama.cpp"
    """Compute backend of kvchat; ignored by other programs."""
    dtype: ComputeType = "auto"
    """Compute type of the torch backend: `auto` is the shortest type with native products on the
    device."""
    compile: CompileMode = "off"
    """Whether the torch backend compiles its decode step: `auto` does on CUDA, where that is
    faster."""
    kv_cache: KVCacheName | None = None
    """Cache type of the torch backend, such as `kivi4`, or types of keys and values such as
    `kivi4/f16`. None is `type_k` and `type_v`, with f16 meaning the compute type. Names are in
    `memory/torch_caches.py`.
    """
    decode_plan: DecodePlanName | None = None
    """Attention plan of the torch backend: `128/512` computes 128 queries at once, each of which
    sees the last 512 tokens; `auto` depends on the length. A plan changes the text; None is full
    attention."""
    flash_attention: FlashAttention = "auto"
    n_batch: Batch = 2048
    n_ubatch: Batch = 512
    n_slots: Annotated[int, Bounds(ge=1, le=MAX_SLOTS)] = 1
    """Parallel requests of llama-server, or chats that kvchat's context holds."""
    kv_unified: bool = False
    """Whether the slots share their cells."""
    swa_full: bool = False
    """Whether sliding-window layers cache every token."""
    offload_kqv: bool = True
    """Whether the cache of a layer is on the layer's GPU, else in RAM."""
    split_mode: SplitMode = "layer"
    """`layer` distributes the layers over several GPUs, `none` puts all on `main_gpu`."""
    main_gpu: Count = 0
    tensor_split: Annotated[
        tuple[Annotated[float, Bounds(ge=0, le=MAX_COUNT)], ...], Bounds(max_length=MAX_DEVICES)
    ] = ()
    """Share of the layers per GPU, in any unit; empty divides by free memory."""
    rpc_workers: Annotated[
        tuple[Annotated[str, Bounds(pattern=WORKER)], ...], Bounds(max_length=MAX_DEVICES)
    ] = ()
    """RPC workers of llama-server, each as `host:50052`; their GPUs precede those of this machine.
    """
    tensor_overrides: tuple[TensorOverride, ...] = ()
    """Devices of single tensors; the first match wins, before `n_cpu_moe`."""
    mmproj_offload: bool = True
    """Whether the projector is on the first GPU."""
    n_mtp_draft: Annotated[int, Bounds(ge=0, le=MAX_DRAFT)] = 0
    """Tokens that the model's MTP head drafts (llama-server's `draft-mtp`); 0 is off."""
    n_threads: Annotated[int, Bounds(ge=1, le=1024)] | None = None
    """Threads of decode steps; None starts with one per physical core, and kvchat adapts it to the
    fastest (`engine.generation.threads`)."""
    n_threads_batch: Annotated[int, Bounds(ge=1, le=1024)] | None = None
    """Threads of prefills; None is the same as for decode steps."""
    use_mmap: bool = True
    """Whether weights in RAM are mapped from the file, else copied."""
    use_extra_buffers: bool = True
    """Whether weights may move to repacked or AMX buffers (llama.cpp's `use_extra_bufts`)."""
    speculation: SpeculationSettings = SpeculationSettings()

    def shared_fields(self) -> dict[str, Any]:
        """Values of the shared fields by name, for presets and configurations."""
        return {each.name: getattr(self, each.name) for each in fields(EngineSettings)}


@dataclass(frozen=True, slots=True)
class Configuration(EngineSettings):
    """All settings of a backend and a session, as plain numbers.

    `n_gpu_layers` is the number of layers on the GPU, counted from the last one and including the
    output layer; -1 is all.
    """

    model_path: Path
    """File of the model; with `server` its name there, or `Path()` for the served one."""
    n_ctx: int
    server: str | None = None
    """URL of the server that makes the replies; None runs the model in kvchat."""
    is_server_trusted: bool = False
    """Whether the user typed the address or saved it in a preset or setting: only such a server
    gets the key of the environment, never one whose address came with a chat."""
    type_k: KVTypeName = "f16"
    """Type of the cached keys."""
    type_v: KVTypeName = "f16"
    """Type of the cached values."""
    n_gpu_layers: int = -1
    n_cpu_moe: int = 0
    """Number of first layers whose experts stay in RAM; -1 is all (`--cpu-moe`)."""
    mmproj_path: Path | None = None
    """Projector, which encodes images for the model."""
    adapters: tuple[Adapter, ...] = ()
    """Default adapters, for replies that specify none."""
    draft: DraftConfiguration | None = None
    kv_trace: Path | None = None
    """File to which each operation of the torch backend's caches is appended as a JSON line."""
    sampling: SamplingSettings = SamplingSettings()

    @classmethod
    def at_server(
        cls,
        url: str,
        model: str | None = None,
        sampling: SamplingSettings | None = None,
        *,
        is_trusted: bool = False,
    ) -> "Configuration":
        """A configuration for the replies of a server, which has its own settings."""
        return cls(
            model_path=Path(model or ""),
            n_ctx=0,
            server=url,
            is_server_trusted=is_trusted,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
            sampling=sampling or SamplingSettings(),
        )

    @property
    def address(self) -> str:
        """Address of the model: the path of its file, or `URL#NAME` of a server."""
        if self.server is None:
            return str(self.model_path)
        return f"{self.server}#{self.model_path}" if self.model_path.name else self.server

    @property
    def without_drafts(self) -> "Configuration":
        """A copy without predictor and draft model."""
        off = replace(self.speculation, predictor=PredictorName.OFF)
        return replace(self, draft=None, speculation=off)

    @property
    def on_cpu(self) -> "Configuration":
        """A copy without layers on a GPU."""
        draft = None if self.draft is None else replace(self.draft, n_gpu_layers=0)
        return replace(self, n_gpu_layers=0, draft=draft)

    @property
    def kv_types(self) -> KVTypes:
        """The types of the cached keys and values."""
        return KVTypes(self.type_k, self.type_v)

    @property
    def lora_paths(self) -> tuple[Path, ...]:
        """The files of the adapters."""
        return tuple(adapter.path for adapter in self.adapters)

    @property
    def n_rows(self) -> int:
        """Maximum rows of logits in a batch of kvchat: one more than the longest draft.

        At least the number of slots, else llama.cpp ends the process (`output_reserve` in
        `src/llama-context.cpp`, 0c1e57098).
        """
        return max(1 + MAX_DRAFT, self.n_slots)

    @property
    def n_batch_of_kvchat(self) -> int:
        """Maximum tokens of a batch that kvchat submits to llama.cpp: an ubatch or `n_rows`.

        llama.cpp ends the process if a batch exceeds its `n_batch`, so it fits the longest draft
        even if ubatches are smaller.
        """
        return max(self.n_rows, min(self.n_batch, self.n_ubatch))

    def of_draft(self, target: Target) -> "Configuration | None":
        """Configuration of the draft model in a program; None without a draft model.

        llama-server opens the draft model with the context and the slots of the target.
        """
        draft = self.draft
        if draft is None:
            return None
        is_kvchat = target == "kvchat"
        return replace(
            self,
            model_path=draft.model_path,
            n_ctx=draft.n_ctx if is_kvchat else self.n_ctx,
            n_slots=1 if is_kvchat else self.n_slots,
            n_gpu_layers=draft.n_gpu_layers,
            type_k=draft.type_k,
            type_v=draft.type_v,
            n_cpu_moe=0,
            tensor_overrides=(),
            adapters=(),
            mmproj_path=None,
            kv_trace=None,
            draft=None,
            n_mtp_draft=0,
        )
