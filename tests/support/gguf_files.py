"""Writes small GGUF files: real headers, and damaged ones."""

import struct
from pathlib import Path

Array = tuple[int, list[object]]
FORMATS = {0: "<B", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: object) -> bytes:
    """A value with its type: strings, booleans, integers (u32), floats, and lists of those."""
    if isinstance(value, list):
        kind, _ = _kind(value[0] if value else 0)
        items = b"".join(_plain(item) for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items
    kind, _ = _kind(value)
    return struct.pack("<I", kind) + _plain(value)


def _kind(value: object) -> tuple[int, str]:
    if isinstance(value, bool):
        return 7, "<?"
    if isinstance(value, int):
        return 4, "<I"
    if isinstance(value, float):
        return 6, "<f"
    return 8, ""


def _plain(value: object) -> bytes:
    kind, form = _kind(value)
    return text(str(value)) if kind == 8 else struct.pack(form, value)


def header(
    values: dict[str, object],
    tensors: list[tuple[str, tuple[int, ...], int, int]] = (),  # type: ignore[assignment]
    *,
    version: int = 3,
) -> bytes:
    """Tensors are (name, shape, ggml type, offset)."""
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    data += b"".join(text(key) + typed(value) for key, value in values.items())
    for name, shape, kind, offset in tensors:
        data += text(name) + struct.pack("<I", len(shape))
        data += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
    return data


def write(path: Path, data: bytes, *, data_bytes: int = 0) -> Path:
    """Write a header and a sparse data section after it."""
    start = -(-len(data) // 32) * 32
    with path.open("wb") as file:
        file.write(data)
        file.truncate(max(start + data_bytes, len(data)))
    return path


def llama_values(**changes: object) -> dict[str, object]:
    """The keys of a small dense model."""
    values: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": 128,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    }
    return {**values, **changes}


def tiny_gguf(
    path: Path, architecture: str = "llama", *, n_tensors: int = 1, n_parts: int = 1
) -> Path:
    """Write a whole file with one tensor of 32 floats."""
    values = {
        "general.architecture": architecture,
        f"{architecture}.context_length": 4096,
        "general.file_type": 15,
        "split.count": n_parts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, header(values, [("t", (32,), 0, 0)] * n_tensors), data_bytes=128)
