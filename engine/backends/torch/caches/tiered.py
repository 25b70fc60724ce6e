"""Caches of a model's layers on the device, in RAM or on disk: there when they are needed.

A forward pass asks for one layer after the other, over and over. So the layer needed last is that
asked for just now, and it is the first to leave; the next one is read from disk meanwhile.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from threading import RLock
from typing import IO

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, held_bytes
from engine.backends.torch.caches.saved import read_tensors
from engine.errors import CacheStoreError, StateError


class Tier(StrEnum):
    """Where a layer's cache lies."""

    DEVICE = "device"
    HOST = "host"
    """As saved bytes in RAM."""
    DISK = "disk"


class TieredCache(KVCache):
    """A layer's cache that can be elsewhere while other layers are computed.

    What leaves is what `KVCache.save` gives, so nothing is lost, whatever kind it is of. All
    methods bring it back to the device first, but for those that need no entries. A thread may
    read it ahead from disk meanwhile.

    Args:
        make: Makes the layer's empty cache on the device.
        folder: Where its bytes lie while they are on disk, in a file without a name.
        before: Called before the cache is brought back, with this one: makes room.
    """

    def __init__(
        self,
        make: Callable[[], KVCache],
        folder: Path,
        before: Callable[["TieredCache"], None] = lambda _: None,
    ) -> None:
        self._make, self._folder, self._before = make, folder, before
        self._cache: KVCache | None = make()
        self._saved = b""
        """While it is in RAM; empty where there are no tokens."""
        self._file: IO[bytes] | None = None
        """While it is on disk."""
        self._checksum = 0
        self._length = 0
        self._lock = RLock()
        self.device_bytes = held_bytes([self._cache])
        """What it takes on the device when it is there."""

    @property
    def tier(self) -> Tier:
        if self._cache is not None:
            return Tier.DEVICE
        return Tier.HOST if self._file is None else Tier.DISK

    @property
    def length(self) -> int:
        return self._length if self._cache is None else self._cache.length

    @property
    def nbytes(self) -> int:
        """Bytes on the device and in RAM; nothing of it is counted on disk."""
        return len(self._saved) if self._cache is None else held_bytes([self._cache])

    def tensors(self) -> Iterable[Tensor]:
        return () if self._cache is None else self._cache.tensors()

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        return self._here().update(keys, values)

    def state(self) -> KVState:
        return self._here().state()

    def can_crop(self, length: int) -> bool:
        return length in (0, self.length) or self._here().can_crop(length)

    def crop(self, length: int) -> None:
        with self._lock:
            if length == 0 and self._cache is None:
                self._put_away(b"", None)
                self._length = 0
                return
        self._here().crop(length)

    def held(self) -> Mapping[str, Tensor]:
        with self._lock:
            if self._cache is None and self._length:
                return read_tensors(self._bytes())[0]
            return (self._cache or self._make()).held()

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self._here().hold(found, length)

    def demote(self) -> None:
        """One tier down: device, RAM, disk.

        Raises:
            CacheStoreError: the file cannot be written; the cache stays in RAM.
        """
        with self._lock:
            if self._cache is not None:
                self._length, self._saved = self._cache.length, self._cache.save()
                self._cache = None
            elif self._saved:
                self._checksum = zlib.crc32(self._saved)
                self._put_away(b"", _written(self._folder, self._saved))

    def promote(self) -> None:
        """One tier up.

        Raises:
            CacheStoreError: the file cannot be read.
            StateError: it is not what was written.
        """
        with self._lock:
            if self._file is not None:
                self._put_away(self._bytes(), None)
            elif self._cache is None:
                saved, cache = self._saved, self._make()
                self._saved, self._cache = b"", cache
                if saved:
                    cache.load(saved)

    def read_ahead(self) -> None:
        """Bring it from disk into RAM; nothing where it is not on disk any more.

        Raises:
            CacheStoreError: the file cannot be read.
            StateError: it is not what was written.
        """
        with self._lock:
            if self.tier is Tier.DISK:
                self.promote()

    def close(self) -> None:
        """Forget what is held."""
        with self._lock:
            self._put_away(b"", None)
            self._cache, self._length = None, 0

    def _here(self) -> KVCache:
        if self._cache is None:
            self._before(self)
        while self._cache is None:
            self.promote()
        return self._cache

    def _bytes(self) -> bytes:
        """What it was saved as."""
        if self._file is None:
            return self._saved
        try:
            self._file.seek(0)
            saved = self._file.read()
        except OSError as error:
            raise CacheStoreError(f"a file in {self._folder} cannot be read: {error}") from error
        if zlib.crc32(saved) != self._checksum:
            raise StateError(
                f"a file in {self._folder} is not what was written: start again from an empty cache"
            )
        return saved

    def _put_away(self, saved: bytes, file: IO[bytes] | None) -> None:
        """Lie in RAM or in a file, in place of the file that there was."""
        if self._file is not None:
            self._file.close()
        self._saved, self._file = saved, file


def _written(folder: Path, saved: bytes) -> IO[bytes]:
    """An open file without a name: it ends with the process, however that ends."""
    try:
        file = TemporaryFile(dir=folder)  # noqa: SIM115  the cache closes it
        try:
            file.write(saved)
            file.flush()
        except OSError:
            file.close()
            raise
    except OSError as error:
        raise CacheStoreError(f"{folder} cannot be written: {error}") from error
    return file


class TierManager:
    """The caches of a model's layers within budgets of the device and of RAM.

    Layers are asked for in order. Room on the device is made by the layer whose turn comes last,
    which is the one just computed (Belady 1966, whose rule needs to know what comes: here it is
    known); RAM gives way to disk by the same rule. The layer whose turn is next is read from disk
    by a thread meanwhile.

    Args:
        makes: Makes each layer's empty cache.
        folder: Where files without names are made, which nothing outlives.
        device_bytes: Most bytes of caches on the device; one cache always has its place.
        host_bytes: Most bytes of saved caches in RAM.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], KVCache]],
        folder: Path,
        *,
        device_bytes: int,
        host_bytes: int,
    ) -> None:
        self._device_bytes, self._host_bytes = device_bytes, host_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvchat-layers")
        self._reading: Future[None] | None = None
        self.caches: list[TieredCache] = []
        """Of the layers, in order."""
        for index, make in enumerate(makes):
            self.caches.append(TieredCache(make, folder, self._make_room))
            self._shrink(index, 0)

    def tiers(self) -> list[Tier]:
        """Where each layer's cache lies."""
        self._wait()
        return [each.tier for each in self.caches]

    def close(self) -> None:
        """Forget all that is held, files too; closing twice is harmless."""
        self._pool.shutdown()
        for each in self.caches:
            each.close()

    def _make_room(self, wanted: TieredCache) -> None:
        self._wait()
        index = self.caches.index(wanted)
        self._shrink(index, wanted.device_bytes)
        following = self.caches[(index + 1) % len(self.caches)]
        if following is not wanted and following.tier is Tier.DISK:
            self._reading = self._pool.submit(following.read_ahead)

    def _wait(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.result()

    def _shrink(self, index: int, n_wanted: int) -> None:
        """Demote until `n_wanted` bytes more fit on the device while a layer is asked for."""
        self._demote(Tier.DEVICE, index, self._device_bytes - n_wanted)
        self._demote(Tier.HOST, index, self._host_bytes)

    def _demote(self, tier: Tier, index: int, budget: int) -> None:
        """The one asked for stays where it is, or is about to leave RAM."""
        asked, others = self.caches[index], [*self.caches[index + 1 :], *self.caches[:index]]
        held = [each for each in reversed(others) if each.tier is tier]  # whose turn is last first
        n_held = sum(each.nbytes for each in held)
        if asked.tier is tier is Tier.DEVICE:
            n_held += asked.nbytes
        for each in held:
            if n_held <= budget:
                return
            n_held -= each.nbytes
            each.demote()
