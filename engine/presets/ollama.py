"""An Ollama Modelfile and the environment of its server (Ollama of August 2026, fb30760).

K/V type, flash attention and slots belong to the server, which has one K/V type for all models. An
import reads them from the comment that the export writes.
"""

import re
from collections.abc import Iterator

from engine.configuration import Configuration
from engine.errors import shown
from engine.presets import export, fields
from engine.presets.export import Exported, ExportRequest, Imported, ImportRequest
from engine.presets.fields import FieldRow, Fields, number_text

PROGRAM, SOURCE = "Ollama", "an Ollama Modelfile"
DOCUMENTED = ("f16", "q8_0", "q4_0")
"""K/V types that Ollama's documentation names; builds of 2026 pass any on to llama-server."""
DEFAULT_N_CTX = 4096
DEFAULTS: Fields = {
    "sampling.temperature": 0.8, "sampling.top_k": 40, "sampling.top_p": 0.9, "sampling.min_p": 0.0,
    "sampling.repetition_penalty": 1.1, "speculation.predictor": "off", "type_k": "f16",
    "n_slots": 1,
}  # fmt: skip
QUOTES = '"""'


def _count(value: str) -> int:
    return int(float(value))


def _not_zero(value: int) -> int | None:
    return value or None


PARAMETERS = (
    FieldRow("n_ctx", "num_ctx", read=_count),
    FieldRow("n_gpu_layers", "num_gpu", fields.layers_number, fields.layers_from),
    FieldRow("n_ubatch", "num_batch", read=_count),
    FieldRow("sampling.temperature", "temperature", number_text, float),
    FieldRow("sampling.top_k", "top_k", read=lambda value: max(_count(value), 0)),
    FieldRow("sampling.top_p", "top_p", number_text, float),
    FieldRow("sampling.min_p", "min_p", number_text, float),
    FieldRow("sampling.repetition_penalty", "repeat_penalty", number_text, float),
    FieldRow("sampling.repetition_window", "repeat_last_n", read=_count),
    FieldRow("n_threads", "num_thread", read=_count),
    FieldRow("n_mtp_draft", "draft_num_predict", _not_zero, _count),  # for models that Ollama knows
    FieldRow("main_gpu", "main_gpu", _not_zero, _count),
)
SERVER = (
    FieldRow("type_k", "OLLAMA_KV_CACHE_TYPE", read=str.lower),
    FieldRow("flash_attention", "OLLAMA_FLASH_ATTENTION",
        lambda value: None if value == "auto" else int(value == "on"),
        lambda value: "off" if value in ("0", "false") else "on"),
    FieldRow("n_slots", "OLLAMA_NUM_PARALLEL", read=lambda value: max(int(value), 1)),
)  # fmt: skip


def render(request: ExportRequest) -> Exported:
    """The Modelfile, with the server's environment as a second file."""
    configuration = export.with_absolute_paths(request).configuration
    variables = _environment(request)
    body = "".join(f"{line}\n" for line in _modelfile(configuration))
    found = read(ImportRequest(export.comments(variables) + body)).preset
    lost = tuple(fields.differences(configuration, found, PROGRAM))
    name = export.slug(request.name)
    text = "".join(f"{line}\n" for line in variables)
    heading = (
        f"{request.name}, planned by kvchat for Ollama",
        f"create: ollama create {name.lower()} -f {name}.Modelfile",
        f"the server needs {', '.join(variables)}",
        f"({name}.ollama.env; with systemd: EnvironmentFile= in `systemctl edit ollama`)",
        *lost,
        *request.warnings,
    )
    files = {f"{name}.ollama.env": text}
    return Exported(export.comments(heading) + body, lost, companions=files)


def _modelfile(configuration: Configuration) -> Iterator[str]:
    paths = [("FROM", configuration.model_path), ("FROM", configuration.mmproj_path)]
    paths += [("ADAPTER", path) for path in configuration.lora_paths]
    yield from (f"{word} {export.writable(str(path))}" for word, path in paths if path is not None)
    values = fields.write_rows(PARAMETERS, configuration)
    values["num_ctx"] = configuration.n_ctx // configuration.n_slots
    yield from (f"PARAMETER {key} {value}" for key, value in values.items() if value is not None)


def _environment(request: ExportRequest) -> list[str]:
    configuration = request.configuration
    values = fields.write_rows(SERVER, configuration)
    if configuration.type_k != configuration.type_v:
        values["OLLAMA_KV_CACHE_TYPE"] = fields.one_type(configuration, DOCUMENTED)
    values["OLLAMA_GPU_OVERHEAD"] = request.margin_bytes
    return [f"{name}={value}" for name, value in values.items() if value is not None]


def read(request: ImportRequest) -> Imported:
    """The preset of a Modelfile."""
    found: Fields = {**DEFAULTS, "lora": []}
    left_out, notes, variables = list[str](), list[str](), Fields()
    for word, value in _instructions(request.text):
        match word:
            case "#":
                variables |= dict(re.findall(r"\b(OLLAMA_\w+)=([^\s,;]+)", value))
            case "from" if "mmproj" not in found:
                found["mmproj" if "model" in found else "model"] = value
            case "adapter":
                found["lora"].append(value)
            case "system":
                found["system_prompt"] = value
            case "parameter":
                key, _, text = value.partition(" ")
                given = {key.lower(): _unquoted(text)}
                found |= fields.read_rows(PARAMETERS, given)
                left_out += [f"PARAMETER {value}"] if given else []
            case _:
                left_out.append(f"{word.upper()} {' '.join(value.split())}")
    if "n_ctx" not in found:
        notes.append(f"no num_ctx is given: Ollama uses {DEFAULT_N_CTX:,}")
    if not variables:
        notes.append("K/V type, flash attention and slots are set in the environment of Ollama's "
        "server: the preset uses f16, auto and one slot")  # fmt: skip
    found |= fields.read_rows(SERVER, variables)
    found |= {"n_batch": found["n_ubatch"]} if "n_ubatch" in found else {}
    found["n_ctx"] = found.get("n_ctx", DEFAULT_N_CTX) * found["n_slots"]
    found |= {"type_v": found["type_k"], "name": fields.file_stem(found["model"]) or PROGRAM}
    return fields.imported(found, SOURCE, left_out, notes)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Every instruction with its value, without quotes; comments under `#`."""
    lines = iter(text.split("\n"))
    for line in lines:
        if line.lstrip(" \t").startswith("#"):
            yield "#", line
            continue
        found = re.fullmatch(r"\s*(\w+)[ \t]+(.*)", line, re.DOTALL)
        if found is None and line.strip():
            raise export.ImportedFileError(
                f"{SOURCE} contains a line without an instruction: {shown(line.strip())}"
            )
        if found is not None:
            value = found[2].strip()
            is_block = value.startswith(QUOTES)
            yield found[1].lower(), _block(value[3:], lines) if is_block else _unquoted(value)


def _block(start: str, following: Iterator[str]) -> str:
    """The text after three quotes, up to the line that ends in three."""
    lines = [start]
    while not lines[-1].rstrip().endswith(QUOTES):
        if (line := next(following, None)) is None:
            raise export.ImportedFileError(f"{SOURCE} contains text without closing triple quotes")
        lines.append(line)
    return "\n".join([*lines[:-1], lines[-1].rstrip().removesuffix(QUOTES)])


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
