"""A Modelfile of Ollama as a preset (Ollama of August 2026, fb30760, `parser/parser.go`).

KV type, flash attention and slots belong to its server: they are read where the file says in a
comment what the server needs, as `kvchat export` writes it.
"""

import re
from collections.abc import Iterator
from itertools import chain

from engine.errors import shown
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.reading import ALL_LAYERS, Data, finite, kv_type, whole
from engine.presets.importing.rules import validated

SOURCE = "a Modelfile of Ollama"
DEFAULT_N_CTX = 4096
DEFAULT_SAMPLING: Data = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.1,
}  # fmt: skip
_FROM = re.compile(r"\s*(?:#.*\n\s*)*from[ \t]+\S", re.IGNORECASE)
_INSTRUCTION = re.compile(r"\s*(\w+)[ \t]+(.*)", re.DOTALL)
QUOTES = '"""'
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\b(OLLAMA_\w+)=([^\s,;]+)")
_COUNTS = {
    "num_ctx": "n_ctx", "num_thread": "n_threads", "main_gpu": "main_gpu",
    "draft_num_predict": "n_mtp_draft",
}  # fmt: skip
_SAMPLING = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repeat_penalty": "repetition_penalty", "repeat_last_n": "repetition_window",
}  # fmt: skip


def looks_like_modelfile(text: str) -> bool:
    """Whether the first line that says something names the model it is made from."""
    return _FROM.match(text) is not None


def read_modelfile(text: str, name: str | None) -> Imported:
    """The preset of a Modelfile.

    Raises:
        ImportedFileError: a value is out of range.
    """
    reader = _Reader()
    for word, value in _instructions(text):
        reader.take(word, value)
    variables = dict(
        pair for comment in _COMMENT.findall(text) for pair in _VARIABLE.findall(comment)
    )
    reader.take_server(variables)
    model = str(reader.data["model"])
    called = name or re.split(r"[/\\]", model)[-1].removesuffix(".gguf") or "Ollama"
    found = validated({"name": called, **reader.data}, SOURCE)
    return Imported(found, SOURCE, tuple(reader.left_out), tuple(reader.notes))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Every instruction with its value, without the quotes around it."""
    lines = iter(_COMMENT.sub("", text).split("\n"))
    for line in lines:
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
    raise ImportedFileError(f"{SOURCE} has a text without the three quotes at its end")


def _unquoted(value: str) -> str:
    value = value.strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1] if is_quoted else value


class _Reader:
    """The rules that grow, and what they have no place for."""

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
                self.data["lora"] = [*_listed(self.data.get("lora")), value]
            case "system":
                self.data["system_prompt"] = value
            case "parameter":
                key, _, given = value.partition(" ")
                if not self._take_parameter(key.lower(), _unquoted(given)):
                    self.left_out.append(f"PARAMETER {value}")
            case _:
                self.left_out.append(f"{word.upper()} {' '.join(value.split())}")

    def _take_parameter(self, key: str, given: str) -> bool:
        number = finite(given)
        if number is None:
            return False
        if key in _SAMPLING:
            whole = key in ("top_k", "repeat_last_n")
            self._sampling[_SAMPLING[key]] = max(int(number), 0) if whole else number
        elif key in _COUNTS:
            self.data[_COUNTS[key]] = int(number)
        elif key == "num_batch":
            self.data["n_batch"] = self.data["n_ubatch"] = int(number)
        elif key == "num_gpu":
            layers = int(number)
            self.data["n_gpu_layers"] = (
                "auto" if layers < 0 else "all" if layers >= ALL_LAYERS else layers
            )
        else:
            return False
        return True

    def take_server(self, variables: dict[str, str]) -> None:
        """Take what the server is set to, and its defaults where nothing is known of it."""
        left_out = self.left_out
        kv = kv_type(variables.get("OLLAMA_KV_CACHE_TYPE"), "OLLAMA_KV_CACHE_TYPE", left_out)
        slots = variables.get("OLLAMA_NUM_PARALLEL", "1")
        n_slots = max(whole(slots) or 1, 1)
        if "n_ctx" not in self.data:
            self.data["n_ctx"] = DEFAULT_N_CTX
            self.notes.append(f"no num_ctx is given: Ollama takes {DEFAULT_N_CTX:,}")
        n_ctx = self.data["n_ctx"]
        assert isinstance(n_ctx, int)
        self.data.update(type_k=kv, type_v=kv, n_slots=n_slots, n_ctx=n_ctx * n_slots)
        flash = variables.get("OLLAMA_FLASH_ATTENTION")
        if flash is not None:
            self.data["flash_attention"] = "off" if flash in ("0", "false") else "on"
        if not variables:
            self.notes.append(
                "KV type, flash attention and slots stand in the environment of Ollama's server: "
                "f16, auto and one are taken"
            )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []
