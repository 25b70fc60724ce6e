"""Caches of a model's layers on the device, in RAM or on disk: on the device when they are needed.

A forward pass needs one layer after the other. So the one just computed is needed last and leaves
first (Belady 1966); the next one is prefetched from disk meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, held_bytes
from engine.errors import CacheStoreError


class Tier(StrEnum):
    """Where a layer's cache is."""

    DEVICE = "device"
    HOST = "host"
    """As saved bytes in RAM."""
    DISK = "disk"


class TieredCache(KVCache):
    """A layer's dense cache that can leave the device while other layers are computed."""

    def __init__(
        self,
        make: Callable[[], KVCache],
        folder: Path,
        free_space: Callable[["TieredCache"], None] = lambda _: None,
    ) -> None:
        self._make, self._folder, self._free_space = make, folder, free_space
        self._cache: KVCache | None = make()
        self._saved = b""
        self._file: IO[bytes] | None = None
        self._reading: Future[bytes] | None = None
        self._length = 0
        self.device_bytes = held_bytes([self._cache])
        """What it takes on the device."""

    @property
    def tier(self) -> Tier:
        if self._cache is not None:
            return Tier.DEVICE
        return Tier.DISK if self._file is not None and self._reading is None else Tier.HOST

    @property
    def length(self) -> int:
        return self._length if self._cache is None else self._cache.length

    @property
    def nbytes(self) -> int:
        """Bytes on the device or in RAM."""
        return len(self._saved) if self._cache is None else self.device_bytes

    def tensors(self) -> Iterable[Tensor]:
        return () if self._cache is None else self._cache.tensors()

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        return self._here().update(keys, values)

    def state(self) -> KVState:
        return self._here().state()

    def crop(self, length: int) -> None:
        if length or self._cache is not None:
            self._here().crop(length)
            return
        if self._file is not None:
            self.promote()  # closes the file
        self._saved, self._length = b"", 0

    def held(self) -> Mapping[str, Tensor]:
        return self._here().held()

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self._here().hold(found, length)

    def demote(self) -> None:
        """Move one tier down; raises `CacheStoreError` where the file cannot be written."""
        if self._cache is not None:
            self._length, self._saved, self._cache = self._cache.length, self._cache.save(), None
        elif self._saved:
            try:
                file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  until promoted
                file.write(self._saved)
            except OSError as error:
                raise CacheStoreError(f"{self._folder} cannot be written: {error}") from error
            self._saved, self._file = b"", file

    def promote(self) -> None:
        """Move one tier up; raises `CacheStoreError` where the file cannot be read."""
        if self._file is not None:
            try:
                self._saved = self._read() if self._reading is None else self._reading.result()
            except OSError as error:
                raise CacheStoreError(f"{self._folder} cannot be read: {error}") from error
            self._file.close()
            self._file = self._reading = None
        elif self._cache is None:
            saved, self._saved, self._cache = self._saved, b"", self._make()
            if saved:
                self._cache.load(saved)

    def prefetch(self, pool: Executor) -> None:
        """Read it from disk in a thread; `promote` waits for that."""
        if self.tier is Tier.DISK:
            self._reading = pool.submit(self._read)

    def _read(self) -> bytes:
        assert self._file is not None
        self._file.seek(0)
        return self._file.read()

    def _here(self) -> KVCache:
        if self._cache is None:
            self._free_space(self)
        while self._cache is None:
            self.promote()
        return self._cache


class TierManager:
    """The layers' caches within budgets of the device and of RAM; the last needed leaves first."""

    def __init__(
        self,
        makes: Sequence[Callable[[], KVCache]],
        folder: Path,
        device_bytes: int,
        host_bytes: int,
    ) -> None:
        self._budgets = {Tier.DEVICE: device_bytes, Tier.HOST: host_bytes}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvchat-layers")
        self.caches: list[TieredCache] = []
        for index, make in enumerate(makes):
            self.caches.append(TieredCache(make, folder, self._free_space))
            self._shrink(index, 0)

    def _free_space(self, wanted: TieredCache) -> None:
        index = self.caches.index(wanted)
        self._shrink(index, wanted.device_bytes)
        self.caches[(index + 1) % len(self.caches)].prefetch(self._pool)

    def _shrink(self, index: int, n_wanted: int) -> None:
        """Demote layers, those needed last first, until `n_wanted` bytes more fit."""
        asked, others = self.caches[index], [*self.caches[index + 1 :], *self.caches[:index]]
        for tier, budget in self._budgets.items():
            held = [each for each in reversed(others) if each.tier is tier]
            n_held = sum(each.nbytes for each in held)
            if tier is Tier.DEVICE:
                n_held += n_wanted + asked.nbytes * (asked.tier is tier)
            for each in held:
                if n_held <= budget:
                    break
                n_held -= each.nbytes
                each.demote()
