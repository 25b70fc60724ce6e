"""Layers' caches on the device, in RAM or on disk; each is promoted when its layer is computed.

The layer just computed is needed last and is demoted first (Belady 1966), while the next layer is
prefetched from disk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, held_bytes
from engine.backends.torch.caches.saved import read_tensors, write_tensors
from engine.errors import CacheStoreError


class Tier(StrEnum):
    """Place of a layer's cache: tensors on the device, bytes in RAM, or a file."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class TieredCache(KVCache):
    """A layer's dense cache that leaves the device while other layers are computed."""

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
        return self._promoted().update(keys, values)

    def state(self) -> KVState:
        return self._promoted().state()

    def crop(self, length: int) -> None:
        if length or self._cache is not None:
            self._promoted().crop(length)
        else:
            if self._file is not None:
                self.promote()  # closes the file
            self._saved, self._length = b"", 0

    def held(self) -> Mapping[str, Tensor]:
        return self._promoted().held()

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self._promoted().hold(found, length)

    def demote(self) -> None:
        """Move one tier down; raises `CacheStoreError` if the file cannot be written."""
        if self._cache is not None:
            self._length = self._cache.length
            self._saved, self._cache = write_tensors(self._cache.held(), self._length), None
        elif self._saved:
            try:
                file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  until promoted
                file.write(self._saved)
            except OSError as error:
                raise CacheStoreError(f"{self._folder} cannot be written: {error}") from error
            self._saved, self._file = b"", file

    def promote(self) -> None:
        """Move one tier up; raises `CacheStoreError` if the file cannot be read."""
        if self._file is not None:
            self._saved = self._read() if self._reading is None else self._reading.result()
            self._file.close()
            self._file = self._reading = None
        elif self._cache is None:
            saved, self._saved, self._cache = self._saved, b"", self._make()
            if saved:
                self._cache.hold(*read_tensors(saved))

    def prefetch(self, pool: Executor) -> None:
        """Read the file in a thread; `promote` waits for it."""
        if self.tier is Tier.DISK:
            self._reading = pool.submit(self._read)

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            self._file.seek(0)
            return self._file.read()
        except OSError as error:
            raise CacheStoreError(f"{self._folder} cannot be read: {error}") from error

    def _promoted(self) -> KVCache:
        if self._cache is None:
            self._free_space(self)
        while self._cache is None:
            self.promote()
        return self._cache


def tiered_caches(
    makes: Sequence[Callable[[], KVCache]], folder: Path, *, device_bytes: int, host_bytes: int
) -> list[TieredCache]:
    """Caches of layers within budgets of the device and of RAM; the rest is on disk."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="kvchat-layers")
    caches: list[TieredCache] = []

    def shrink(index: int, n_wanted: int) -> None:
        """Demote the layers that are needed last until `n_wanted` bytes fit on the device."""
        others = [*caches[index + 1 :], *caches[:index]]
        for tier, budget in ((Tier.DEVICE, device_bytes - n_wanted), (Tier.HOST, host_bytes)):
            held = [each for each in reversed(others) if each.tier is tier]
            while sum(each.nbytes for each in held) > budget and held:
                held.pop(0).demote()

    def free_space(cache: TieredCache) -> None:
        index = caches.index(cache)
        shrink(index, cache.device_bytes)
        caches[(index + 1) % len(caches)].prefetch(pool)

    for index, make in enumerate(makes):
        caches.append(TieredCache(make, folder, free_space))
        shrink(index, caches[index].device_bytes)
    return caches
