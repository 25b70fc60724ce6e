"""An Ollama Modelfile and the environment of its server (Ollama of August 2026, fb30760).

The KV type, flash attention and the number of slots belong to the server, not to the model, and
there is one KV type for all models: they are read where the file says in a comment what the server
needs, as it is written here.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from engine.configuration import Configuration
from engine.errors import shown
from engine.presets.programs.base import (
    Companion,
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    comments,
    named_file,
    number,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.remarks import (
    CONSEQUENCES,
    differences,
    drafting_remarks,
    one_type,
)
from engine.presets.programs.rules import (
    Data,
    as_list,
    file_stem,
    finite,
    kv_type,
    layers_rule,
    layers_written,
    validate_preset,
    whole,
)

PROGRAM = "Ollama"
SOURCE = "a Modelfile of Ollama"
DOCUMENTED = ("f16", "q8_0", "q4_0")
"""KV types that Ollama's documentation names; builds of 2026 pass any on to llama-server."""
DEFAULT_N_CTX = 4096
DEFAULT_SAMPLING: Data = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.1,
}  # fmt: skip
QUOTES = '"""'

_COUNTS: Mapping[str, str] = {
    "num_ctx": "n_ctx", "num_thread": "n_threads", "draft_num_predict": "n_mtp_draft",
    "main_gpu": "main_gpu",
}  # fmt: skip
_SAMPLING: Mapping[str, str] = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repeat_penalty": "repetition_penalty", "repeat_last_n": "repetition_window",
}  # fmt: skip
"""Parameters of a Modelfile by the names that a preset has for them."""
_KV_TYPE, _FLASH = "OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION"
_SLOTS, _MARGIN = "OLLAMA_NUM_PARALLEL", "OLLAMA_GPU_OVERHEAD"


COMMENT = "#"
_FROM = re.compile(r"\s*(?:#.*\n\s*)*from[ \t]+\S", re.IGNORECASE)
_INSTRUCTION = re.compile(r"\s*(\w+)[ \t]+(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\b(OLLAMA_\w+)=([^\s,;]+)")


def render(request: ExportRequest) -> Exported:
    """The Modelfile, with the server's environment as a second file."""
    configuration = with_absolute_paths(request).configuration
    environment = _environment(request)
    body = "\n".join(_modelfile(configuration)) + "\n"
    found = read(ImportRequest(comments(environment) + body)).preset
    own = {**CONSEQUENCES, "n_cpu_moe": "experts lie with their layers: lower num_gpu instead"}
    remarks = (*differences(configuration, found, PROGRAM, own), *_remarks(configuration))
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
    lines = "".join(f"{line}\n" for line in environment)
    companion = Companion(environment_name, lines)
    return Exported(comments(heading) + body, remarks, companions=(companion,))


def is_modelfile(request: ImportRequest) -> bool:
    """Whether the first line that says something names the model it is made from."""
    return _FROM.match(request.text) is not None


def read(request: ImportRequest) -> Imported:
    """The preset of a Modelfile.

    Raises:
        ImportedFileError: a value is out of range.
    """
    reader = _ModelfileReader()
    variables: dict[str, str] = {}
    for word, value in _instructions(request.text):
        if word == COMMENT:
            variables |= dict(_VARIABLE.findall(value))
        else:
            reader.take(word, value)
    reader.take_server(variables)
    called = request.name or file_stem(str(reader.data["model"])) or PROGRAM
    found = validate_preset({"name": called, **reader.data}, SOURCE)
    return Imported(found, SOURCE, tuple(reader.left_out), tuple(reader.notes))


# --- from a configuration ---


def _kv_type(configuration: Configuration) -> str:
    kv_type = configuration.type_k
    return kv_type if kv_type == configuration.type_v else one_type(configuration, DOCUMENTED)


def _modelfile(configuration: Configuration) -> Iterator[str]:
    yield f"FROM {writable(str(configuration.model_path))}"
    if configuration.mmproj_path is not None:
        yield f"FROM {writable(str(configuration.mmproj_path))}"
    for path in configuration.lora_paths:
        yield f"ADAPTER {writable(str(path))}"
    for name, value in _parameters(configuration):
        yield f"PARAMETER {name} {value}"


def _parameters(configuration: Configuration) -> Iterator[tuple[str, str]]:
    yield "num_ctx", str(configuration.n_ctx // configuration.n_slots)
    yield "num_gpu", str(layers_written(configuration.n_gpu_layers))
    yield "num_batch", str(configuration.n_ubatch)
    for name, field in _SAMPLING.items():
        yield name, number(getattr(configuration.sampling, field))
    for name, field in list(_COUNTS.items())[1:]:
        if value := getattr(configuration, field):
            yield name, str(value)


def _environment(request: ExportRequest) -> tuple[str, ...]:
    configuration = request.configuration
    flash = configuration.flash_attention
    return (
        f"{_KV_TYPE}={_kv_type(configuration)}",
        *([] if flash == "auto" else [f"{_FLASH}={int(flash == 'on')}"]),
        f"{_SLOTS}={configuration.n_slots}",
        f"{_MARGIN}={request.margin_bytes}",
    )


def _remarks(configuration: Configuration) -> Iterator[str]:
    yield from drafting_remarks(configuration, PROGRAM, (), 0)
    if (kv_type := _kv_type(configuration)) not in DOCUMENTED:
        yield (
            f"type_k and type_v are {kv_type}: Ollama documents {', '.join(DOCUMENTED)}; builds "
            "of 2026 pass it to their llama-server, older ones use f16"
        )
    if configuration.n_mtp_draft:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: Ollama drafts with an MTP head only "
            "for models it knows"
        )


# --- to rules ---


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Every instruction with its value, without the quotes around it; comments under `COMMENT`."""
    lines = iter(text.split("\n"))
    for line in lines:
        if line.lstrip(" \t").startswith(COMMENT):  # within a text in quotes it is none
            yield COMMENT, line
            continue
        match = _INSTRUCTION.fullmatch(line)
        if match is None and line.strip():
            raise ImportedFileError(f"{SOURCE} has no instruction in {shown(line.strip())}")
        if match is not None:
            value = match[2].strip()
            is_block = value.startswith(QUOTES)
            yield match[1].lower(), _block(value[3:], lines) if is_block else _unquoted(value)


def _block(start: str, following: Iterator[str]) -> str:
    """The text behind three quotes, up to the line that ends in three."""
    lines: list[str] = []
    for line in chain([start], following):
        if line.rstrip().endswith(QUOTES):
            return "\n".join([*lines, line.rstrip().removesuffix(QUOTES)])
        lines.append(line)
    raise ImportedFileError(f"{SOURCE} has a text without closing quotes (three)")


def _unquoted(value: str) -> str:
    value = value.strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1] if is_quoted else value


class _ModelfileReader:
    """The rules that grow, and what a preset has no field for."""

    def __init__(self) -> None:
        self._sampling: Data = dict(DEFAULT_SAMPLING)
        self.data: Data = {"sampling": self._sampling, "speculation": {"predictor": "off"}}
        self.left_out: list[str] = []
        self.notes: list[str] = []

    def take(self, word: str, value: str) -> None:
        """Take one instruction."""
        match word:
            case "from" if "model" not in self.data:
                self.data["model"] = value
            case "from" if "mmproj" not in self.data:
                self.data["mmproj"] = value
            case "adapter":
                self.data["lora"] = [*as_list(self.data.get("lora")), value]
            case "system":
                self.data["system_prompt"] = value
            case "parameter":
                key, _, given = value.partition(" ")
                if not self._take_parameter(key.lower(), _unquoted(given)):
                    self.left_out.append(f"PARAMETER {value}")
            case _:
                self.left_out.append(f"{word.upper()} {' '.join(value.split())}")

    def _take_parameter(self, key: str, given: str) -> bool:
        value = finite(given)
        if value is None:
            return False
        if key in _SAMPLING:
            is_whole = key in ("top_k", "repeat_last_n")
            self._sampling[_SAMPLING[key]] = max(int(value), 0) if is_whole else value
        elif key in _COUNTS:
            self.data[_COUNTS[key]] = int(value)
        elif key == "num_batch":
            self.data["n_batch"] = self.data["n_ubatch"] = int(value)
        elif key == "num_gpu":
            self.data["n_gpu_layers"] = layers_rule(int(value))
        else:
            return False
        return True

    def take_server(self, variables: dict[str, str]) -> None:
        """Take what the server is set to, and its defaults where nothing is known of it."""
        kv = kv_type(variables.get(_KV_TYPE), _KV_TYPE, self.left_out)
        n_slots = max(whole(variables.get(_SLOTS, "1")) or 1, 1)
        if "n_ctx" not in self.data:
            self.data["n_ctx"] = DEFAULT_N_CTX
            self.notes.append(f"no num_ctx is given: Ollama uses {DEFAULT_N_CTX:,}")
        n_ctx = self.data["n_ctx"]
        assert isinstance(n_ctx, int)
        self.data.update(type_k=kv, type_v=kv, n_slots=n_slots, n_ctx=n_ctx * n_slots)
        flash = variables.get(_FLASH)
        if flash is not None:
            self.data["flash_attention"] = "off" if flash in ("0", "false") else "on"
        if not variables:
            self.notes.append(
                "K/V type, flash attention and slots are set in the environment of Ollama's "
                "server: f16, auto and one are used"
            )


file_name = named_file(".Modelfile")
FORMAT = Format(
    "ollama",
    "Ollama Modelfile and environment",
    file_name,
    render,
    recognises=is_modelfile,
    read=read,
)
