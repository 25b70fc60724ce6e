"""The settings of a model that runs, each defined once: name, type, bounds, default and meaning.

A preset has the fields of `EngineSettings` as rules, a `Configuration` has them as the numbers that
a session, an estimate and an export are made from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from math import isfinite, nan
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from engine.errors import PresetError
from engine.files import expanded

Target = Literal["kvchat", "llama-server"]
"""The program that a configuration is for: slots, rows of logits and window caches differ."""

BackendName = Literal["llama.cpp", "torch"]
ComputeType = Literal["auto", "f32", "bf16", "f16"]
CompileMode = Literal["off", "auto", "on"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "none"]
Thinking = Literal["auto", "off"]
Verification = Literal["coupled", "rejection"]
KVTypeName = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

MAX_COUNT = 2**31 - 1
"""The largest count: llama.cpp keeps them in 32 bits."""
MAX_DRAFT = 16
"""Most tokens a draft may have; `n_outputs_max` of the target is one more."""
MAX_PATTERN = 64
MAX_BATCH = 65536
MAX_SLOTS = 256
MAX_DEVICES = 128
WORKER = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}:[0-9]{1,5}$"
"""A worker's address; llama.cpp cuts it at its first colon, so an IPv6 address is none."""


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}


class Bounds:
    """What a value may be, by pydantic's names: `ge`, `le`, `gt`, `lt`, `pattern` and so on.

    Whoever reads a preset asks for the check; this module goes without pydantic, which takes longer
    to import than many a command to run.
    """

    __slots__ = ("_pattern", "limits")

    def __init__(self, *, pattern: str | None = None, **limits: float) -> None:
        self.limits = limits
        self._pattern = {} if pattern is None else {"pattern": pattern}

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], dict[str, object]]
    ) -> dict[str, object]:
        return {**handler(source), **self.limits, **self._pattern}

    def __str__(self) -> str:
        """The range in words: `0 to 10`, `above 0, to 1`, `0 to below 1`, `0 or more`."""
        low = self.limits.get("ge", f"above {self.limits.get('gt')},")
        if self.limits.get("le") == MAX_COUNT:
            return f"{low} or more"
        high = self.limits.get("le", f"below {self.limits.get('lt')}")
        return f"{low} to {high}"

    def allow(self, value: float) -> bool:
        """Whether a number is within; what is none never is."""
        return all(_COMPARE[name](value, bound) for name, bound in self.limits.items())


STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""How pydantic reads these dataclasses: no key that is none, no number that is none."""
Count = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]
DraftLength = Annotated[int, Bounds(ge=1, le=MAX_DRAFT)]
PatternLength = Annotated[int, Bounds(ge=1, le=MAX_PATTERN)]
Batch = Annotated[int, Bounds(ge=1, le=MAX_BATCH)]
DECODE_PLAN = r"^(auto|[1-9][0-9]{0,5}(/[1-9][0-9]{0,8})?)$"
DecodePlanName = Annotated[str, Bounds(pattern=DECODE_PLAN)]
KV_CACHE = r"^([1-9][0-9]{0,3}x[a-z0-9_]{1,32}\+)?[a-z0-9_]{1,32}(/[a-z0-9_]{1,32})?$"
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
    """The types of the cached keys and values: names of `KVTypeName`, or of torch's own kinds."""

    __pydantic_config__ = STRICT

    k: KVKindName
    v: KVKindName

    @classmethod
    def parse(cls, text: str) -> Self:
        """llama.cpp's types of a text: `q8_0` for both, `q8_0/q4_0` for keys and values.

        Raises:
            PresetError: one of them is no cache type.
        """
        names = [part.strip().lower() for part in text.split("/")]
        if len(names) > 2 or not set(names) <= set(KV_TYPE_NAMES):
            raise PresetError(
                f"{text!r} is not a cache type: write one of {', '.join(KV_TYPE_NAMES)}, or "
                "two such as q8_0/q4_0"
            )
        return cls(names[0], names[-1])

    def __str__(self) -> str:
        """`q8_0` where both are one type, else `q8_0/q5_1`: keys, then values."""
        return self.k if self.k == self.v else f"{self.k}/{self.v}"

    @property
    def are_of_llama_cpp(self) -> bool:
        """Whether llama.cpp has both types."""
        return {self.k, self.v} <= set(KV_TYPE_NAMES)


class PredictorName(StrEnum):
    """The sources of drafted tokens that a session can use."""

    OFF = "off"
    LOOKUP = "lookup"
    SUFFIX = "suffix"
    COMBINED = "combined"
    DRAFT = "draft"
    CUSTOM = "custom"
    """The object that a `Session` was given."""


class ControllerName(StrEnum):
    """The rules that set the draft length."""

    FIXED = "fixed"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Who drafts, and how many tokens a round."""

    __pydantic_config__ = STRICT

    predictor: PredictorName = PredictorName.SUFFIX
    controller: ControllerName = ControllerName.AUTO
    n_draft: DraftLength = 3
    """Tokens of each draft under the fixed rule; the automatic rule finds its own length."""
    n_draft_max: DraftLength = 8
    """Longest draft that another program makes where the length is not fixed; kvchat goes without
    it."""
    lookup_pattern_min: PatternLength = 5
    """Shortest run of tokens that the look-up trusts. On two processor cores a drafted token costs
    half a plain step; five tokens of agreement are right often enough for that."""
    lookup_pattern_max: PatternLength = 16
    """Longest run of tokens that the look-up compares."""
    lookup_length_min: DraftLength = 1
    """Tokens that must follow an earlier occurrence for the look-up to copy them."""
    lookup_length_max: DraftLength = MAX_DRAFT
    """Most tokens that the look-up copies, whatever draft length is wanted."""
    suffix_min_confidence: Probability = 0.7
    """Probability under which a suffix draft ends, that all of its tokens are right; 0 never ends.
    On two processor cores 0.5 to 0.8 gain the same, and 0.7 drafts fewer tokens than 0.5."""
    draft_min_tokens: Annotated[int, Bounds(ge=0, le=MAX_DRAFT)] = 0
    """Tokens a draft model proposes whatever its confidence."""
    draft_min_confidence: Probability = 0.6
    """Probability under which a draft model stops drafting; 0 never stops."""
    verification: Verification = "coupled"
    """How a draft is judged above temperature 0: `coupled` gives the same text as no draft,
    `rejection` accepts more and keeps the law of the text, not the text."""
    bonus_token: bool = True
    """Whether the target adds a token of its own to a draft that was accepted whole."""

    @property
    def drafts_from_text(self) -> bool:
        """Whether drafts are copied from the chat itself, as look-up in other programs does."""
        others = (PredictorName.OFF, PredictorName.DRAFT, PredictorName.CUSTOM)
        return self.predictor not in others

    @property
    def n_draft_of_server(self) -> int:
        """Most tokens that llama-server drafts in one round with these settings.

        Its `ngram-simple` drafts nothing where the draft would be shorter than the pattern it looks
        for (`common_ngram_simple_draft`), so a look-up drafts at least as much there.
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
    """How logits become a distribution, in the order of the fields, and what the reply may be.

    Temperature 0 is greedy: a one-hot at the largest logit after penalties.
    """

    __pydantic_config__ = STRICT

    repetition_penalty: RepetitionPenalty = 1.0
    """Divides positive and multiplies negative logits of recent tokens; 1 is off."""
    repetition_window: Count = 64
    """How many recent tokens are penalised; 0 is off."""
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
    """Ids of tokens that end the reply, beside those that the model's file names."""
    thinking: Thinking = "auto"
    """Whether a reasoning model thinks before it answers: as its template has it, or not."""
    thinking_budget: Count = 0
    """Most tokens of a reply's thinking, which is closed then; 0 does not bound it."""

    def with_absolute_paths(self) -> "SamplingSettings":
        """These settings with paths that hold wherever they are used."""
        return replace(
            self, json_schema=_absolute(self.json_schema), grammar=_absolute(self.grammar)
        )


def _absolute(path: str) -> str:
    return str(expanded(path).absolute()) if path else ""


def check_settings(settings: SamplingSettings | SpeculationSettings) -> None:
    """Refuse values outside their bounds, all of them at once.

    Raises:
        PresetError: each value with its name and what is allowed.
    """
    kind: object = type(settings)
    wrong = [
        f"{name} is {value}, allowed: {bounds}"
        for name, bounds in bounds_of(kind).items()
        if not bounds.allow(value := getattr(settings, name))
    ]
    if wrong:
        raise PresetError("; ".join(wrong))


def sampling_bounds() -> Mapping[str, Bounds]:
    """What each of the `SamplingSettings` may be, by its name."""
    return bounds_of(SamplingSettings)


@cache
def bounds_of(kind: Any) -> Mapping[str, Bounds]:
    """What each field of settings may be, by its name; those that are free are left out."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: bounds
        for name, hint in hints.items()
        for bounds in getattr(hint, "__metadata__", ())
        if isinstance(bounds, Bounds)
    }


DRAFT_N_CTX = 4096
"""Context of a draft model where no other was asked for: it reads the end of a longer line."""


@dataclass(frozen=True, slots=True)
class DraftConfiguration:
    """The draft model and its context."""

    model_path: Path
    n_ctx: int
    """Tokens that it holds; of a line that is longer it reads the end."""
    n_gpu_layers: int = -1
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter (LoRA) beside the model, and how strongly it works."""

    path: Path
    scale: float = 1.0
    """What its change of the weights is multiplied with; 1 is as trained, 0 leaves it out."""

    @classmethod
    def read(cls, text: str) -> "Adapter":
        """What `FILE[:SCALE]` names: a number behind the last colon is the scale."""
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
        """As `read` takes it."""
        if self.scale == 1.0 and Adapter.read(str(self.path)).path == self.path:
            return str(self.path)
        return f"{self.path}:{self.scale!r}"


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors that go to a device of their own: llama.cpp's `--override-tensor`."""

    __pydantic_config__ = STRICT

    pattern: Annotated[str, Bounds(pattern=r"^[^,=]+$")]
    """Regular expression that is searched in the tensor's name; llama.cpp cuts at `,` and `=`."""
    device: Annotated[str, Bounds(min_length=1)] = "CPU"
    """`CPU`, or the number of a GPU as in `GPU 0`; llama.cpp calls it CUDA0, Vulkan0 and so on."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How a model runs: what a preset and a configuration say in the same words."""

    backend: BackendName = "llama.cpp"
    """The engine that kvchat computes with; other programs have one of their own."""
    dtype: ComputeType = "auto"
    """Type that the torch backend computes in: `auto` is the shortest that the device multiplies by
    itself."""
    compile: CompileMode = "off"
    """Whether the torch backend compiles its decode step: `auto` does on CUDA, where that
    takes less time."""
    kv_cache: KVCacheName | None = None
    """Kind of the torch backend's cache, such as `kivi4`, or one of keys and one of values as in
    `kivi4/f16`. None is `type_k` and `type_v`, where f16 stands for the type of the computation.
    Its names are in `memory/torch_caches.py`.
    """
    decode_plan: DecodePlanName | None = None
    """How the torch backend's attention goes through a text: `128/512` takes 128 queries at once,
    each of which sees the last 512 tokens; `auto` goes by the length. It changes what is said; None
    leaves the model as it is."""
    flash_attention: FlashAttention = "auto"
    n_batch: Batch = 2048
    n_ubatch: Batch = 512
    n_slots: Annotated[int, Bounds(ge=1, le=MAX_SLOTS)] = 1
    """Requests that llama-server answers, or chats that kvchat's context holds, side by side."""
    kv_unified: bool = False
    """Whether the slots share their cells."""
    swa_full: bool = False
    """Whether sliding-window layers keep every token."""
    offload_kqv: bool = True
    """Whether the cache of a layer lies on the layer's GPU; else it stays in main memory."""
    split_mode: SplitMode = "layer"
    """`layer` shares the layers among several GPUs, `none` gives all to `main_gpu`."""
    main_gpu: Count = 0
    tensor_split: Annotated[
        tuple[Annotated[float, Bounds(ge=0, le=MAX_COUNT)], ...], Bounds(max_length=MAX_DEVICES)
    ] = ()
    """Share of each GPU in the layers, in any unit; empty shares by free memory."""
    rpc_workers: Annotated[
        tuple[Annotated[str, Bounds(pattern=WORKER)], ...], Bounds(max_length=MAX_DEVICES)
    ] = ()
    """Workers of llama.cpp that llama-server gives layers to, each as `host:50052`; their GPUs come
    before those of this machine."""
    tensor_overrides: tuple[TensorOverride, ...] = ()
    """Tensors with a device of their own; the first match wins, before `n_cpu_moe`."""
    mmproj_offload: bool = True
    """Whether the projector lies on the first GPU."""
    n_mtp_draft: Annotated[int, Bounds(ge=0, le=MAX_DRAFT)] = 0
    """Tokens that the model's own next-token head drafts (llama-server's `draft-mtp`); 0 is off."""
    n_threads: Annotated[int, Bounds(ge=1, le=1024)] | None = None
    """Threads while decoding; None is one per physical core, and kvchat follows what is quickest
    (`engine.generation.threads`)."""
    n_threads_batch: Annotated[int, Bounds(ge=1, le=1024)] | None = None
    """Threads while a prompt is read; None is as many as while decoding."""
    use_mmap: bool = True
    """Whether weights in main memory are mapped from the file, else read into memory of their own.
    """
    use_extra_buffers: bool = True
    """Whether weights may move to repacked or AMX buffers (llama.cpp's `use_extra_bufts`)."""
    speculation: SpeculationSettings = SpeculationSettings()

    def shared_fields(self) -> dict[str, Any]:
        """The fields of this class, by name: of a preset or of a configuration."""
        return {each.name: getattr(self, each.name) for each in fields(EngineSettings)}


@dataclass(frozen=True, slots=True)
class Configuration(EngineSettings):
    """Everything that a backend and a session need, as plain numbers.

    `n_gpu_layers` is the number of layers from the last one on that go to the GPU, the output
    layer counting as one; -1 is all of them.
    """

    model_path: Path
    """File of the model; with `server`, its name there, and `Path()` is the one it serves."""
    n_ctx: int
    server: str | None = None
    """Address of the server that makes the replies; None makes them here."""
    is_server_trusted: bool = False
    """Whether the user typed the address, or saved it in a preset or setting: only such a server
    gets the key of the environment, and none whose address came with a chat."""
    type_k: KVTypeName = "f16"
    """Type of the cached keys."""
    type_v: KVTypeName = "f16"
    """Type of the cached values."""
    n_gpu_layers: int = -1
    n_cpu_moe: int = 0
    """First layers whose experts stay in main memory; -1 is all (`--cpu-moe`)."""
    mmproj_path: Path | None = None
    """Projector beside the model, which reads images for it."""
    adapters: tuple[Adapter, ...] = ()
    """What is loaded beside the model, for every reply that names none of its own."""
    draft: DraftConfiguration | None = None
    kv_trace: Path | None = None
    """Where each operation of the torch backend's caches is appended as a line of JSON."""
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
        """Replies of a server, which was started with settings of its own."""
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
        """What opens the model again: the path of its file, or the server and its name there."""
        if self.server is None:
            return str(self.model_path)
        return f"{self.server}#{self.model_path}" if self.model_path.name else self.server

    @property
    def without_drafts(self) -> "Configuration":
        """The same with nothing that drafts."""
        off = replace(self.speculation, predictor=PredictorName.OFF)
        return replace(self, draft=None, speculation=off)

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
        """Most rows of logits in a batch of kvchat: one more than the longest draft.

        No fewer than slots: llama.cpp ends the process otherwise (`output_reserve` in
        `src/llama-context.cpp`, 0c1e57098).
        """
        return max(1 + MAX_DRAFT, self.n_slots)

    @property
    def n_batch_of_kvchat(self) -> int:
        """Tokens that kvchat gives llama.cpp at once: a micro-batch, or the rows of a draft.

        llama.cpp ends the process when it is given more tokens than its `n_batch`, so that holds
        the longest draft even where micro-batches are smaller.
        """
        return max(self.n_rows, min(self.n_batch, self.n_ubatch))

    def of_draft(self, target: Target) -> "Configuration | None":
        """The draft model's own configuration in a program; None where there is no draft model.

        llama-server opens the draft with the context and the slots of the target.
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
