"""Measured costs of speculation, saved between runs."""

import hashlib
from pathlib import Path

from engine.builds import installed_build, machine
from engine.configuration import Configuration
from engine.files import NewestEntries
from engine.model.identity import model_identity
from engine.speculation.costs import CostProfile

VERSION = 4
MAX_PROFILES = 64
COST_FIELDS = (
    "backend", "dtype", "compile", "kv_cache", "decode_plan", "flash_attention", "type_k",
    "type_v", "n_ubatch", "n_slots", "swa_full", "n_gpu_layers", "n_cpu_moe",
    "offload_kqv", "split_mode", "main_gpu", "tensor_split", "tensor_overrides", "n_threads",
    "n_threads_batch", "use_mmap", "use_extra_buffers",
)  # fmt: skip
"""Settings of the target that change the cost of a batch."""
DRAFT_FIELDS = ("n_gpu_layers", "type_k", "type_v")


class SavedCosts:
    """A configuration's cost profile in a JSON file of profiles by key.

    If the file cannot be read or written, costs are measured again. With `path` None nothing is
    saved.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._entries = NewestEntries(path, "profiles", VERSION, MAX_PROFILES, CostProfile)
        self._key = key

    @classmethod
    def of(cls, configuration: Configuration, path: Path | None) -> "SavedCosts":
        """The saved costs of a configuration.

        Raises:
            ModelFileError: a model cannot be read.
        """
        return cls(path, "" if path is None else profile_key(configuration))

    def read(self) -> CostProfile | None:
        """The profile of an earlier run; None if there is none."""
        return self._entries.read().get(self._key)

    def write(self, profile: CostProfile) -> None:
        """Save the costs; beyond `MAX_PROFILES` profiles the oldest are deleted."""
        self._entries.add(self._key, profile)


def profile_key(configuration: Configuration) -> str:
    """Digest of the machine, the build, the models and the settings that change costs.

    Raises:
        ModelFileError: a model cannot be read.
    """
    draft = configuration.draft
    files = [configuration.model_path, *([draft.model_path] if draft else [])]
    facts = (
        *machine(),
        installed_build(configuration.backend),
        [model_identity(path) for path in files],
        [str(getattr(configuration, name)) for name in COST_FIELDS],
        [getattr(draft, name) for name in DRAFT_FIELDS] if draft else [],
        sum(adapter.scale != 0 for adapter in configuration.adapters),
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
