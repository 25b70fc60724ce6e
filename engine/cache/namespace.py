"""Namespaces of cached states: model, build and settings, identified by hashes of the files."""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import ModelFileError
from engine.files import NewestEntries, open_file, reason_of
from engine.model.gguf import read_gguf
from engine.model.identity import adapters_in_words

HASHES = "model-hashes.json"
"""File of the model hashes, beside the folder of cached states."""
VERSION = 1
DIGEST_BYTES = 32
MAX_FILES = 256
SETTLED_NS = 2_000_000_000
"""Age at which a file's mtime identifies its content; the coarsest file system clock, FAT's, has
a resolution of 2 s."""

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size in bytes, mtime and ctime in ns."""


class FileHashes:
    """BLAKE2b digests of files, cached while a file is unchanged.

    Args:
        path: The file of the cached digests; None caches nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._digests = NewestEntries(path, "digests", VERSION, MAX_FILES, str)

    def digest(self, file: Path, *, unchanged_since: float = math.inf) -> str:
        """The digest of a file: 64 hexadecimal digits.

        Args:
            file: The file.
            unchanged_since: Seconds since the epoch when the model was loaded; a file that changed
                later is refused.

        Raises:
            ModelFileError: it cannot be read, or changed after `unchanged_since`.
        """
        try:
            with open_file(file) as opened:
                stamp = _stamp(os.fstat(opened.fileno()))
                if max(stamp[3:]) > unchanged_since * 1e9:
                    raise ModelFileError(
                        f"{file} changed after it was loaded: reload the model to save its states"
                    )
                name = ":".join(map(str, stamp))
                known = self._digests.read().get(name, "")
                if len(known) == 2 * DIGEST_BYTES:
                    return known
                digest = file_digest(opened, partial(blake2b, digest_size=DIGEST_BYTES)).hexdigest()
                after = _stamp(os.fstat(opened.fileno()))
        except OSError as error:
            raise ModelFileError(f"{file} cannot be read: {reason_of(error)}") from error
        if after != stamp:
            raise ModelFileError(
                f"{file} changed while it was read: wait until the file is complete"
            )
        if time.time_ns() - max(stamp[3:]) > SETTLED_NS:
            self._digests.add(name, digest)
        return digest


def _stamp(status: os.stat_result) -> Stamp:
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Namespace:
    """States that are interchangeable for equal tokens."""

    key: str
    """Hash of `fields`: 32 hexadecimal characters."""
    model: str
    """Path of the model's first file when the namespace was opened; not part of the key."""
    fields: tuple[tuple[str, str], ...]
    """Name and value of everything that changes the computed numbers."""

    @property
    def is_orphaned(self) -> bool:
        """Whether the model's file is gone; False if its folder cannot be read."""
        try:
            Path(self.model).stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return True
        except OSError:
            pass
        return False


def namespace_of(
    configuration: Configuration,
    *,
    state_format: str,
    hash_file: Callable[[Path], str],
    gpus: Sequence[str] = (),
) -> Namespace:
    """The namespace of the states that a context of this configuration computes.

    The rope settings and the attention window are in the model file. Of the context length it
    matters whether one sequence may exceed the trained length, because some models then use other
    rope factors (llama.cpp's `get_rope_factors`). Settings that only change the batches are left
    out: threads, `n_batch`, `n_ubatch`.

    Args:
        configuration: The configuration of the context.
        state_format: `Backend.state_format`.
        hash_file: Returns the hash of a whole file, or raises `ModelFileError`.
        gpus: Names of the GPUs that llama.cpp uses; without any, offload is left out.
    """
    model = read_gguf(configuration.model_path)
    n_trained = model.integer(f"{model.architecture}.rope.scaling.original_context_length")
    n_trained = n_trained or model.integer(f"{model.architecture}.context_length") or 0
    n_slots = configuration.n_slots
    is_beyond = configuration.n_ctx // n_slots > n_trained
    fields = (
        ("format", state_format),
        ("model hash", " ".join(hash_file(path) for path in model.paths)),
        ("LoRA hashes", adapters_in_words(configuration.adapters, hash_file)),
        ("rope", "of the model" + (", beyond its training" if is_beyond else "")),
        ("K type", configuration.type_k),
        ("V type", configuration.type_v),
        ("flash attention", configuration.flash_attention),
        ("sliding window", "whole" if configuration.swa_full else "as trained"),
        ("streams", "one sequence" if n_slots == 1 else f"{n_slots} sequences in separate cells"),
        ("CPU kernels", "repacked" if configuration.use_extra_buffers else "plain"),
        ("offload", _offload(configuration, gpus)),
    )
    key = blake2b(json.dumps(fields).encode(), digest_size=KEY_BYTES).hexdigest()
    return Namespace(key, str(configuration.model_path.absolute()), fields)


def _offload(configuration: Configuration, gpus: Sequence[str]) -> str:
    if not gpus or configuration.n_gpu_layers == 0:
        return "none"
    overrides = (f"{each.pattern}={each.device}" for each in configuration.tensor_overrides)
    parts = (
        f"layers {configuration.n_gpu_layers}",
        f"experts of {configuration.n_cpu_moe} layers on the CPU",
        f"cache on the {'GPU' if configuration.offload_kqv else 'CPU'}",
        f"split mode {configuration.split_mode}, main GPU {configuration.main_gpu}",
        f"GPU shares {','.join(map(str, configuration.tensor_split)) or 'by free memory'}",
        f"on {', '.join(gpus)}",
        *overrides,
    )
    return "; ".join(parts)
