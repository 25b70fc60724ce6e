"""Settings of koboldcpp: a `.kcpps` is the JSON of its options.

Checked with the options of 1.117.1; where a name changed since 1.102 (`useswa` became `noswa`,
`flashattention` became `noflashattention`) both stand there, for it ignores what it does not know.
"""

import json
from collections.abc import Iterator

from engine.configuration import Configuration, PredictorName
from engine.presets.export.elsewhere import (
    left_behind,
    no_band,
    no_lookup,
    one_type,
)
from engine.presets.export.options import device_name
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    slug,
    with_absolute_paths,
    writable,
)

PROGRAM = "koboldcpp"
QUANT_KV: dict[str, int | str] = {"f16": 0, "q8_0": 1, "q4_0": 2, "bf16": "bf16", "q5_1": "q5_1"}
"""Numbers that every version reads, and names that only those of 2026 do."""
ALL_LAYERS = 999
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

_CONSEQUENCES = {
    "n_slots": "it answers one request after the other",
    "kv_unified": "and has one slot",
    "use_extra_buffers": "and weights may be repacked",
}


def file_name(request: ExportRequest) -> str:
    """Give a name for the settings."""
    return f"{slug(request.name)}.kcpps"


def render(request: ExportRequest) -> Exported:
    """Give the settings; start with `koboldcpp --config FILE`.

    Raises:
        ExportError: a path or pattern that no export can write.
    """
    configuration = with_absolute_paths(request).configuration
    kv_type, kv_remarks = one_type(configuration, PROGRAM, tuple(QUANT_KV))
    settings = {
        "model_param": writable(str(configuration.model_path)),
        "host": request.host,
        "port": request.port,
        "port_param": request.port,
        "contextsize": configuration.n_ctx,
        "batchsize": _batch(configuration),
        "flashattention": configuration.flash_attention != "off",
        "noflashattention": configuration.flash_attention == "off",
        "quantkv": QUANT_KV[kv_type],
        "useswa": not configuration.swa_full,
        "noswa": configuration.swa_full,
        "lowvram": not configuration.offload_kqv,
        "autofit": False,
        "gendefaults": _sampling(configuration),
        "skiplauncher": True,
        **_placement(request),
        **_others(configuration),
    }
    remarks = (*kv_remarks, *_remarks(configuration))
    return Exported(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", remarks)


def _placement(request: ExportRequest) -> dict[str, object]:
    configuration = request.configuration
    n_layers = configuration.n_gpu_layers
    if not request.uses_gpu:
        return {"usecpu": True, "gpulayers": 0}
    one_gpu = configuration.split_mode == "none"
    n_experts = configuration.n_cpu_moe
    return {
        "gpulayers": ALL_LAYERS if n_layers < 0 else n_layers,
        "usecuda": ["normal", str(configuration.main_gpu)] if one_gpu else ["normal"],
        "maingpu": configuration.main_gpu,
        "tensor_split": list(configuration.tensor_split) or None,
        "moecpu": ALL_LAYERS if n_experts < 0 else n_experts,
        "overridetensors": ",".join(
            f"{writable(each.pattern)}={device_name(each.device)}"
            for each in configuration.tensor_overrides
        ),
    }


def _others(configuration: Configuration) -> dict[str, object]:
    others: dict[str, object] = {}
    if configuration.n_threads is not None:
        others["threads"] = configuration.n_threads
    if configuration.mmproj_path is not None:
        others["mmproj"] = writable(str(configuration.mmproj_path))
        others["mmprojcpu"] = not configuration.mmproj_offload
    if configuration.lora_paths:
        others["lora"] = [writable(str(path)) for path in configuration.lora_paths]
    if configuration.n_mtp_draft:
        others["usemtp"] = True
        others["draftamount"] = configuration.n_mtp_draft
    draft = configuration.draft
    if draft is not None and configuration.speculation.predictor is PredictorName.DRAFT:
        others["draftmodel"] = writable(str(draft.model_path))
        others.setdefault("draftamount", configuration.speculation.n_draft)
        others["draftgpulayers"] = ALL_LAYERS if draft.n_gpu_layers < 0 else draft.n_gpu_layers
    return others


def _sampling(configuration: Configuration) -> str:
    """Give the defaults of its API, which are JSON within the JSON."""
    sampling = configuration.sampling
    return json.dumps(
        {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "rep_pen": sampling.repetition_penalty,
            "rep_pen_range": sampling.repetition_window,
        }
    )


def _batch(configuration: Configuration) -> int:
    fitting = [size for size in BATCHES if size <= configuration.n_ubatch]
    return fitting[-1] if fitting else BATCHES[0]


def _remarks(configuration: Configuration) -> Iterator[str]:
    batch = _batch(configuration)
    if not batch == configuration.n_batch == configuration.n_ubatch:
        yield (
            f"n_batch is {configuration.n_batch} and n_ubatch {configuration.n_ubatch}: koboldcpp "
            f"has batchsize for both, a power of two, and gets {batch}"
        )
    if configuration.flash_attention == "auto":
        yield "flash_attention is auto: koboldcpp has on and off, and gets on"
    if isinstance(QUANT_KV.get(configuration.type_k), str):
        yield f"type_k is {configuration.type_k}: koboldcpp before 2026 reads that as f16"
    if not 256 <= configuration.n_ctx <= 524288:
        yield f"n_ctx is {configuration.n_ctx}: koboldcpp takes 256 to 524288"
    if configuration.flash_attention == "off" and configuration.type_v not in ("f16", "bf16"):
        yield (
            f"type_v is {configuration.type_v} without flash attention: koboldcpp then quantises "
            "the keys only"
        )
    yield from no_lookup(configuration, PROGRAM)
    if configuration.speculation.predictor is PredictorName.DRAFT:
        yield from no_band(configuration, PROGRAM)
    yield from left_behind(configuration, PROGRAM, _CONSEQUENCES)
