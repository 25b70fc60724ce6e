"""A configuration as fields of LM Studio, by the keys of its public schema."""

from collections.abc import Iterator
from pathlib import Path

from engine.configuration import Configuration, KVTypeName, PredictorName
from engine.presets.export.elsewhere import left_behind, no_band, no_lookup
from engine.presets.export.request import ExportRequest

PROGRAM = "LM Studio"
KV_TYPES = ("f32", "f16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

_LOAD = "llm.load."
_LLAMA = "llm.load.llama."
_DRAFT = "llm.load.llama.speculativeDecoding."
_PREDICTION = "llm.prediction."

_CONSEQUENCES = {
    "swa_full": "and layers with a sliding window keep their window only",
    "tensor_overrides": "and every tensor lies with its layer",
    "mmproj_path": "it takes the projector that lies beside the model",
    "lora_paths": "and loads the model without them",
    "use_extra_buffers": "and weights may be repacked",
}


def load(request: ExportRequest) -> dict[str, object]:
    """Give the fields that a model is loaded with."""
    configuration = request.configuration
    values: dict[str, object] = {
        f"{_LLAMA}autoFit": False,
        f"{_LOAD}contextLength": configuration.n_ctx,
        f"{_LOAD}offloadKVCacheToGpu": configuration.offload_kqv,
        f"{_LLAMA}flashAttention": configuration.flash_attention != "off",
        f"{_LLAMA}kCacheQuantizationType": _kv_type(configuration.type_k),
        f"{_LLAMA}vCacheQuantizationType": _kv_type(configuration.type_v),
        f"{_LLAMA}evalBatchSize": configuration.n_batch,
        f"{_LLAMA}physicalBatchSize": configuration.n_ubatch,
        f"{_LOAD}numParallelSessions": configuration.n_slots,
        f"{_LOAD}useUnifiedKvCache": configuration.kv_unified,
    }
    ratio = _ratio(configuration.n_gpu_layers, _n_layers(request))
    if ratio is not None:
        values[f"{_LLAMA}acceleration.offloadRatio"] = ratio
    experts = _ratio(configuration.n_cpu_moe, _n_layers(request))
    if experts is not None:
        values[f"{_LOAD}numCpuExpertLayersRatio"] = experts
    if configuration.n_threads is not None:
        values[f"{_LLAMA}cpuThreadPoolSize"] = configuration.n_threads
    return {**values, **_gpus(configuration), **_speculation(configuration)}


def prediction(request: ExportRequest) -> dict[str, object]:
    """Give the fields that replies are drawn with."""
    sampling = request.configuration.sampling
    return {
        f"{_PREDICTION}temperature": sampling.temperature,
        f"{_PREDICTION}topKSampling": sampling.top_k,
        f"{_PREDICTION}topPSampling": _checked(sampling.top_p, is_on=sampling.top_p < 1),
        f"{_PREDICTION}minPSampling": _checked(sampling.min_p, is_on=sampling.min_p > 0),
        f"{_PREDICTION}repeatPenalty": _checked(
            sampling.repetition_penalty, is_on=sampling.repetition_penalty != 1
        ),
    }


def remarks(request: ExportRequest) -> Iterator[str]:
    """Name what LM Studio does otherwise."""
    configuration = request.configuration
    for name, kv_type in (("type_k", configuration.type_k), ("type_v", configuration.type_v)):
        if kv_type not in KV_TYPES:
            yield f"{name} is {kv_type}: LM Studio offers no such type, and gets f16 of one size"
    if configuration.flash_attention == "auto":
        yield "flash_attention is auto: LM Studio has on and off, and gets on"
    yield from _unknown_layers(request)
    if (
        configuration.sampling.repetition_window != 64
        and configuration.sampling.repetition_penalty != 1
    ):
        yield (
            f"repetition_window is {configuration.sampling.repetition_window}: LM Studio keeps its "
            "own"
        )
    yield from no_lookup(configuration, PROGRAM)
    if configuration.draft is not None:
        yield from _draft_remarks(configuration)
    yield from left_behind(configuration, PROGRAM, _CONSEQUENCES)


def _unknown_layers(request: ExportRequest) -> Iterator[str]:
    configuration = request.configuration
    n_layers = _n_layers(request)
    for name, value in (
        ("n_gpu_layers", configuration.n_gpu_layers),
        ("n_cpu_moe", configuration.n_cpu_moe),
    ):
        if value > 0 and n_layers is None:
            yield f"{name} is {value}: LM Studio wants a share, and the layers are not known here"
    if n_layers is not None and configuration.n_gpu_layers == n_layers:
        yield (
            f"n_gpu_layers is {n_layers}, all but the output: LM Studio reads that share as all, "
            "the output layer too"
        )


def _draft_remarks(configuration: Configuration) -> Iterator[str]:
    draft = configuration.draft
    assert draft is not None
    if configuration.speculation.predictor is not PredictorName.DRAFT:
        return
    if configuration.n_mtp_draft:
        yield "the draft model stays behind: LM Studio drafts with the model's own head instead"
        return
    if _identifier(draft.model_path) is None:
        yield (
            f"the draft model {draft.model_path} does not lie in LM Studio's folder: it is named "
            "by its path there, which it may not find"
        )
    yield from no_band(configuration, PROGRAM)
    if (draft.type_k, draft.type_v) != ("f16", "f16"):
        yield (
            f"the draft's KV types are {draft.type_k} and {draft.type_v}: LM Studio has no setting "
            "for them"
        )


def _kv_type(name: KVTypeName) -> dict[str, object]:
    known = name if name in KV_TYPES else "f16"
    return {"checked": known != "f16", "value": known}


def _checked(value: float, *, is_on: bool) -> dict[str, object]:
    return {"checked": is_on, "value": value}


def _n_layers(request: ExportRequest) -> int | None:
    return None if request.model is None else request.model.architecture.n_blocks


def _ratio(count: int, n_layers: int | None) -> float | str | None:
    """Give a number of layers as LM Studio's share: `off`, `max`, or between."""
    if count == 0:
        return "off"
    if count < 0:
        return "max"
    if n_layers is None:
        return None
    return "max" if count > n_layers else count / n_layers


def _gpus(configuration: Configuration) -> dict[str, object]:
    ratio = list(configuration.tensor_split)
    if configuration.split_mode == "none":
        ratio = [0.0] * configuration.main_gpu + [1.0]
    if not ratio:
        return {}
    split = {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}
    return {"load.gpuSplitConfig": split}


def _speculation(configuration: Configuration) -> dict[str, object]:
    draft, speculation = configuration.draft, configuration.speculation
    if configuration.n_mtp_draft:
        return {
            f"{_DRAFT}draftMtp": True,
            f"{_DRAFT}draftSimple": False,
            f"{_DRAFT}draftMaxTokens": configuration.n_mtp_draft,
        }
    if draft is None or speculation.predictor is not PredictorName.DRAFT:
        return {f"{_DRAFT}draftSimple": False}
    return {
        f"{_DRAFT}draftSimple": True,
        f"{_DRAFT}draftModel": _identifier(draft.model_path) or str(draft.model_path),
        f"{_DRAFT}draftMaxTokens": speculation.n_draft,
        f"{_DRAFT}draftMinTokens": min(speculation.draft_min_tokens, speculation.n_draft),
        f"{_DRAFT}draftMinContinueProbability": speculation.draft_min_confidence,
    }


def _identifier(path: Path) -> str | None:
    """Give a model's place below LM Studio's folder of models."""
    for folder in path.parents:
        if folder.name == "models" and folder.parent.name in (".lmstudio", "lm-studio"):
            return path.relative_to(folder).as_posix()
    return None
