"""The numbers that a session is built from: the outcome of preset, model and hardware."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "none"]
Verification = Literal["coupled", "match", "rejection", "block"]
KVTypeName = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

MOST_COUNT = 2**31 - 1
"""The largest count: llama.cpp keeps them in 32 bits."""
MAX_DRAFT = 16
"""Most tokens a draft may have; `n_outputs_max` of the target is one more."""


class PredictorName(StrEnum):
    """The sources of drafted tokens that a session can be told to use."""

    OFF = "off"
    LOOKUP = "lookup"
    SUFFIX = "suffix"
    COMBINED = "combined"
    DRAFT = "draft"
    CUSTOM = "custom"


class ControllerName(StrEnum):
    """The rules that set the draft length."""

    FIXED = "fixed"
    BAND = "band"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Who drafts, and how many tokens a round."""

    predictor: PredictorName = PredictorName.SUFFIX
    custom_predictor: str = ""
    """Name of the plugin's predictor that `custom` is; empty where none is named."""
    controller: ControllerName = ControllerName.AUTO
    n_draft: int = 3
    """Draft length: the fixed one, or where the band starts; 1 to `MAX_DRAFT` tokens. The automatic
    rule takes neither this nor `n_draft_max`."""
    n_draft_max: int = 8
    """Longest draft that the band may reach."""
    lookup_pattern_min: int = 5
    """Shortest run of tokens that the look-up trusts. On two processor cores a drafted token costs
    half a plain step; five tokens of agreement are right often enough for that."""
    lookup_pattern_max: int = 16
    """Longest run of tokens that the look-up compares."""
    lookup_length_min: int = 1
    """Tokens that must stand behind an earlier place for the look-up to copy them."""
    lookup_length_max: int = MAX_DRAFT
    """Most tokens that the look-up copies, whatever draft length is wanted."""
    suffix_min_confidence: float = 0.7
    """Probability under which a suffix draft ends, that all of its tokens are right; 0 never ends.
    On two processor cores 0.5 to 0.8 gain the same, and 0.7 drafts fewer tokens than 0.5."""
    draft_min_tokens: int = 0
    """Tokens a draft model proposes whatever its confidence."""
    draft_min_confidence: float = 0.6
    """Probability under which a draft model stops drafting; 0 never stops."""
    verification: Verification = "coupled"
    """How a draft is judged above temperature 0: `coupled` and `match` give the same text as no
    draft; `rejection` and `block` accept more and keep the law of the text, not the text."""
    bonus_token: bool = True
    """Whether the target adds a token of its own behind a draft that was accepted whole."""
    strict: bool = False
    """Whether drafts keep to the batches that come out to the bit as plain decoding's steps, or,
    where there are none, near ties are decoded again alone; for `coupled` and `match`."""

    @property
    def predictor_title(self) -> str:
        """The predictor as it is shown and typed, such as `custom:NAME`."""
        return self.title_of(self.predictor)

    def title_of(self, name: PredictorName) -> str:
        """Give what a predictor would be shown as if these settings named it."""
        if name is PredictorName.CUSTOM and self.custom_predictor:
            return f"{name}:{self.custom_predictor}"
        return name.value

    @property
    def drafts_from_text(self) -> bool:
        """Whether drafts are copied from the chat itself, as look-up in other programs does."""
        return self.predictor in (
            PredictorName.LOOKUP,
            PredictorName.SUFFIX,
            PredictorName.COMBINED,
        )

    @property
    def n_draft_of_server(self) -> int:
        """Most tokens that llama-server drafts in one round with these settings.

        Its `ngram-simple` drafts nothing where the draft would be shorter than the pattern it looks
        for (`common_ngram_simple_draft`), so a look-up is told to draft at least as much.
        """
        match self.predictor:
            case PredictorName.OFF | PredictorName.CUSTOM:
                return 0
            case PredictorName.DRAFT:
                return self.n_draft
            case PredictorName.LOOKUP | PredictorName.SUFFIX | PredictorName.COMBINED:
                is_fixed = self.controller is ControllerName.FIXED
                wanted = self.n_draft if is_fixed else self.n_draft_max
                if self.predictor is PredictorName.LOOKUP:
                    wanted = min(wanted, self.lookup_length_max)
                return max(wanted, self.lookup_pattern_min)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How logits become a distribution, in the order of the fields.

    Temperature 0 is greedy: a one-hot at the largest logit after penalties.
    """

    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of recent tokens; 1 is off."""
    repetition_window: int = 64
    """How many recent tokens are penalised; 0 is off."""
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0


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
class TensorOverride:
    """Tensors that go to a device of their own: llama.cpp's `--override-tensor`."""

    pattern: str
    """Regular expression that is searched in the tensor's name."""
    device: str = "CPU"
    """`CPU`, or the number of a GPU as in `GPU 0`; llama.cpp calls it CUDA0, Vulkan0 and so on."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that a backend and a session need, as plain numbers.

    `n_gpu_layers` is the number of layers from the last one on that go to the GPU, the output
    layer counting as one; -1 is all of them.
    """

    model_path: Path
    n_ctx: int
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"
    flash_attention: FlashAttention = "auto"
    n_gpu_layers: int = -1
    n_slots: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    offload_kqv: bool = True
    split_mode: SplitMode = "layer"
    """Whether several GPUs share the layers, or `main_gpu` takes all."""
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    """Share of each GPU in the layers, in any unit; empty shares by free memory."""
    n_cpu_moe: int = 0
    """First layers whose experts stay in main memory; -1 is all (`--cpu-moe`)."""
    tensor_overrides: tuple[TensorOverride, ...] = ()
    """First match wins, before `n_cpu_moe`."""
    mmproj_path: Path | None = None
    """Projector of a vision or audio model: for llama-server, kvchat loads none."""
    mmproj_offload: bool = True
    """Whether the projector lies on the first GPU."""
    lora_paths: tuple[Path, ...] = ()
    """Adapters that are loaded beside the model, at scale 1."""
    n_mtp_draft: int = 0
    """Tokens that the model's own next-token head drafts (llama-server's `draft-mtp`); 0 is off."""
    n_threads: int | None = None
    """Threads while decoding; None is one per physical core."""
    use_extra_buffers: bool = True
    """Whether weights may move to repacked or AMX buffers (llama.cpp's `use_extra_bufts`)."""
    draft: DraftConfiguration | None = None
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    @property
    def n_rows(self) -> int:
        """Most rows of logits in a batch of kvchat: one more than the longest draft.

        No fewer than slots: llama.cpp ends the process otherwise (`output_reserve` in
        `src/llama-context.cpp`, 0c1e57098).
        """
        return max(1 + MAX_DRAFT, self.n_slots)
