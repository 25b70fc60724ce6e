"""Which build of llama.cpp is installed, and how it was built.

`python -m engine.backends.llama_cpp.build` prints the latter as one JSON object: a build for
another processor can end the process that only loads it, so whoever asks starts one for it.
"""

import json
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

import llama_cpp

BUILD_ID_NOTE = b"\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\0"
"""A note of the linker: name of 4 bytes, 20 bytes of hash, type 3."""
BUILD_ID_BYTES = 20
HEAD_BYTES = 4096
CHUNK_BYTES = 1 << 20


@cache
def library_build() -> str:
    """16 hexadecimal characters that change when a library file of llama.cpp changes.

    Files whose linker wrote a build id (a hash of their content) are known by it, others are read
    as a whole.
    """
    return build_of(Path(llama_cpp.llama_cpp._lib._name).parent)


def build_of(folder: Path) -> str:
    """The build of the libraries in a folder."""
    digest = blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.removeprefix("lib").startswith(("llama", "ggml")):
            digest.update(path.name.encode() + b"\0" + _identity(path))
    return digest.hexdigest()


def main() -> None:
    """Write version, processor features and GPU support to standard output."""
    facts = {
        "version": llama_cpp.__version__,
        "features": llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
        "has_gpu": bool(llama_cpp.llama_supports_gpu_offload()),
    }
    json.dump(facts, sys.stdout)


def _identity(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        at = head.find(BUILD_ID_NOTE)
        start = at + len(BUILD_ID_NOTE)
        if at >= 0 and start + BUILD_ID_BYTES <= len(head):
            return head[start : start + BUILD_ID_BYTES]
        digest = blake2b(head, digest_size=BUILD_ID_BYTES)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
        return digest.digest()


if __name__ == "__main__":
    main()
