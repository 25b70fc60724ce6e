"""Caches of a model's layers on the device, in main memory or on disk: there when they are needed.

A forward pass asks for one layer after the other, over and over. So the layer needed last is that
asked for just now, and it is the first to leave; the next ones are fetched ahead.
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
    """As saved bytes in main memory."""
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
        self._saved: bytes | None = None
        """None while it is elsewhere; empty where there are no tokens."""
        self._lock = RLock()
        self._file: IO[bytes] | None = None
        self._length = 0
        self._checksum = 0
        self.device_bytes = held_bytes([self._cache])
        """What it takes on the device when it is there."""

    @property
    def tier(self) -> Tier:
        if self._cache is not None:
            return Tier.DEVICE
        return Tier.DISK if self._saved is None else Tier.HOST

    @property
    def length(self) -> int:
        return self._cache.length if self._cache is not None else self._length

    @property
    def nbytes(self) -> int:
        """Bytes on the device and in main memory; nothing of it is counted on disk."""
        return len(self._saved or b"") if self._cache is None else held_bytes([self._cache])

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
                self._drop()
                return
        self._here().crop(length)

    def held(self) -> Mapping[str, Tensor]:
        with self._lock:
            if self._cache is None and self._length:
                return read_tensors(self._read() if self._saved is None else self._saved)[0]
            return (self._cache or self._make()).held()

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self._here().hold(found, length)

    def demote(self) -> None:
        """One tier down: device, main memory, disk.

        Raises:
            CacheStoreError: the file cannot be written; the cache stays in main memory.
        """
        with self._lock:
            if self._cache is not None:
                self._length, self._saved = self._cache.length, self._cache.save()
                self._cache = None
            elif self._saved:
                try:
                    self._file = _written(self._folder, self._saved)
                except OSError as error:
                    raise CacheStoreError(f"{self._folder} cannot be written: {error}") from error
                self._checksum = zlib.crc32(self._saved)
                self._saved = None

    def promote(self) -> None:
        """One tier up.

        Raises:
            CacheStoreError: the file cannot be read.
            StateError: it is not what was written.
        """
        with self._lock:
            if self.tier is Tier.DISK:
                self.read_ahead()
            elif self._saved is not None:
                saved, cache = self._saved, self._make()
                self._saved, self._cache = None, cache
                if saved:
                    cache.load(saved)

    def read_ahead(self) -> None:
        """Bring it from disk into main memory; nothing where it is not on disk any more.

        Raises:
            CacheStoreError: the file cannot be read.
            StateError: it is not what was written.
        """
        with self._lock:
            if self.tier is not Tier.DISK or self._file is None:
                return
            saved = self._read()
            self._file.close()
            self._file, self._saved = None, saved

    def close(self) -> None:
        """Forget what is held."""
        with self._lock:
            self._drop()
            self._cache = None

    def _here(self) -> KVCache:
        if self._cache is None:
            self._before(self)
        while self._cache is None:
            self.promote()
        return self._cache

    def _read(self) -> bytes:
        assert self._file is not None
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

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._saved = b""
        self._length = 0


def _written(folder: Path, saved: bytes) -> IO[bytes]:
    """An open file without a name: it ends with the process, however that ends."""
    file = TemporaryFile(dir=folder)  # noqa: SIM115  the cache closes it
    try:
        file.write(saved)
        file.flush()
    except OSError:
        file.close()
        raise
    return file


class TierManager:
    """The caches of a model's layers within budgets of the device and of main memory.

    Layers are asked for in order. Room on the device is made by the layer whose turn comes last,
    which is the one just computed (Belady 1966, whose rule needs to know what comes: here it is
    known); main memory gives way to disk by the same rule. Layers whose turn is next are read from
    disk by a thread meanwhile.

    Args:
        makes: Makes each layer's empty cache.
        folder: Where files without names are made, which nothing outlives.
        device_bytes: Most bytes of caches on the device; one cache always has its place.
        host_bytes: Most bytes of saved caches in main memory.
        n_ahead: Layers that are read ahead from disk.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], KVCache]],
        folder: Path,
        *,
        device_bytes: int,
        host_bytes: int,
        n_ahead: int = 1,
    ) -> None:
        self._device_bytes, self._host_bytes, self._n_ahead = device_bytes, host_bytes, n_ahead
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvchat-layers")
        self._reading: list[Future[None]] = []
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
        self._reading.clear()
        for each in self.caches:
            each.close()

    def _make_room(self, wanted: TieredCache) -> None:
        self._wait()
        index = self.caches.index(wanted)
        self._shrink(index, wanted.device_bytes)
        n_layers = len(self.caches)
        for step in range(1, self._n_ahead + 1):
            following = self.caches[(index + step) % n_layers]
            if following is not wanted and following.tier is Tier.DISK:
                self._reading.append(self._pool.submit(following.read_ahead))

    def _wait(self) -> None:
        reading, self._reading = self._reading, []
        for each in reading:
            each.result()

    def _shrink(self, index: int, n_wanted: int) -> None:
        """Demote until so many bytes more fit on the device while a layer is asked for."""
        self._demote(Tier.DEVICE, index, self._device_bytes - n_wanted)
        self._demote(Tier.HOST, index, self._host_bytes)

    def _demote(self, tier: Tier, index: int, budget: int) -> None:
        """The one asked for stays where it is, or is about to leave main memory."""
        asked = self.caches[index]
        by_turn = sorted(self.caches, key=lambda each: self._turn(each, index), reverse=True)
        held = [each for each in by_turn if each.tier is tier and each is not asked]
        n_held = sum(each.nbytes for each in held)
        if asked.tier is tier is Tier.DEVICE:
            n_held += asked.nbytes
        for each in held:
            if n_held <= budget:
                return
            n_held -= each.nbytes
            each.demote()

    def _turn(self, cache: TieredCache, index: int) -> int:
        """Layers until it is asked for."""
        return (self.caches.index(cache) - index) % len(self.caches)
