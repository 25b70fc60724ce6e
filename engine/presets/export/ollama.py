"""An Ollama Modelfile and the environment of its server (Ollama of August 2026, fb30760).

The KV type, flash attention and the number of slots belong to the server, not to the model, and
there is one KV type for all models.
"""

from collections.abc import Iterator

from engine.configuration import Configuration
from engine.presets.export.elsewhere import (
    left_behind,
    no_draft,
    no_lookup,
    one_type,
)
from engine.presets.export.request import (
    Companion,
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.export.words import number

PROGRAM = "Ollama"
DOCUMENTED = ("f16", "q8_0", "q4_0")
"""KV types that Ollama's documentation names; builds of 2026 pass any on to llama-server."""
ALL_LAYERS = 999

_CONSEQUENCES = {
    "kv_unified": "each slot has num_ctx tokens of its own",
    "swa_full": "and layers with a sliding window keep their window only",
    "offload_kqv": "and the cache lies with its layers",
    "split_mode": "and it shares layers among the GPUs it finds",
    "tensor_split": "and it shares by free memory",
    "n_cpu_moe": "so experts lie with their layers: lower num_gpu instead",
    "tensor_overrides": "and every tensor lies with its layer",
    "mmproj_offload": "and the projector goes to a GPU",
    "use_extra_buffers": "and weights may be repacked",
}


def file_name(request: ExportRequest) -> str:
    """Give a name for the Modelfile."""
    return f"{slug(request.name)}.Modelfile"


def render(request: ExportRequest) -> Exported:
    """Give the Modelfile, with the server's environment as a second file."""
    configuration = with_absolute_paths(request).configuration
    kv_type, kv_remarks = _kv_type(configuration)
    remarks = (*kv_remarks, *_remarks(configuration))
    environment = _environment(request, kv_type)
    environment_name = f"{slug(request.name)}.ollama.env"
    name = slug(request.name).lower()
    heading = (
        f"{request.name}, planned by kvchat for Ollama",
        f"create: ollama create {name} -f {file_name(request)}",
        f"the server needs {', '.join(environment)}",
        f"({environment_name}; with systemd: EnvironmentFile= in `systemctl edit ollama`)",
        *remarks,
        *request.warnings,
    )
    text = comments(heading) + "\n".join(_modelfile(configuration)) + "\n"
    lines = "".join(f"{line}\n" for line in environment)
    return Exported(text, remarks, companions=(Companion(environment_name, lines),))


def _kv_type(configuration: Configuration) -> tuple[str, tuple[str, ...]]:
    kv_type = configuration.type_k
    if kv_type != configuration.type_v:
        return one_type(configuration, PROGRAM, DOCUMENTED)
    if kv_type in DOCUMENTED:
        return kv_type, ()
    return kv_type, (
        f"type_k and type_v are {kv_type}: Ollama documents {', '.join(DOCUMENTED)}; builds of "
        "2026 pass it on to their llama-server, older ones take f16",
    )


def _modelfile(configuration: Configuration) -> Iterator[str]:
    yield f"FROM {writable(str(configuration.model_path))}"
    if configuration.mmproj_path is not None:
        yield f"FROM {writable(str(configuration.mmproj_path))}"
    for path in configuration.lora_paths:
        yield f"ADAPTER {writable(str(path))}"
    sampling = configuration.sampling
    n_layers = configuration.n_gpu_layers
    parameters = {
        "num_ctx": str(configuration.n_ctx // configuration.n_slots),
        "num_gpu": str(ALL_LAYERS if n_layers < 0 else n_layers),
        "num_batch": str(configuration.n_ubatch),
        "temperature": number(sampling.temperature),
        "top_k": str(sampling.top_k),
        "top_p": number(sampling.top_p),
        "min_p": number(sampling.min_p),
        "repeat_penalty": number(sampling.repetition_penalty),
        "repeat_last_n": str(sampling.repetition_window),
    }
    if configuration.n_threads is not None:
        parameters["num_thread"] = str(configuration.n_threads)
    if configuration.n_mtp_draft:
        parameters["draft_num_predict"] = str(configuration.n_mtp_draft)
    if configuration.main_gpu:
        parameters["main_gpu"] = str(configuration.main_gpu)
    yield from (f"PARAMETER {name} {value}" for name, value in parameters.items())


def _environment(request: ExportRequest, kv_type: str) -> tuple[str, ...]:
    configuration = request.configuration
    flash = [] if configuration.flash_attention == "auto" else [
        f"OLLAMA_FLASH_ATTENTION={int(configuration.flash_attention == 'on')}"
    ]  # fmt: skip
    return (
        f"OLLAMA_KV_CACHE_TYPE={kv_type}",
        *flash,
        f"OLLAMA_NUM_PARALLEL={configuration.n_slots}",
        f"OLLAMA_GPU_OVERHEAD={request.margin_bytes}",
    )


def _remarks(configuration: Configuration) -> Iterator[str]:
    if configuration.n_batch != configuration.n_ubatch:
        yield (
            f"n_batch is {configuration.n_batch} and n_ubatch {configuration.n_ubatch}: Ollama has "
            f"num_batch for both, and gets {configuration.n_ubatch}"
        )
    if configuration.n_mtp_draft:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: Ollama drafts with the model's own head "
            "only where it knows the model to have one"
        )
    yield from no_lookup(configuration, PROGRAM)
    yield from no_draft(configuration, PROGRAM)
    yield from left_behind(configuration, PROGRAM, _CONSEQUENCES)
