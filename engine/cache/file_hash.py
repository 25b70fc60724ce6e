"""The hash of a whole file, remembered: a model of 20 GB is read once."""

import math
import os
import time
from hashlib import blake2b
from pathlib import Path
from typing import TypeGuard

from engine.errors import ModelFileError
from engine.newest_entries import NewestEntries

VERSION = 1
BLOCK_BYTES = 4 << 20
DIGEST_BYTES = 32
MOST_FILES = 256
SETTLED_NS = 2_000_000_000
"""Age from which a file's time of change tells two contents apart, whatever the clock of its disk:
the coarsest one, FAT's, counts in 2 s."""

Stamp = tuple[int, int, int, int, int]
"""Device, number on it, bytes, and times of change of content and of entry in ns."""


class FileHashes:
    """Gives BLAKE2b digests of files, from memory where a file is as it was.

    Args:
        path: The file that remembers; None remembers nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._digests = NewestEntries(path, "digests", VERSION, MOST_FILES)

    def digest(self, file: Path, *, unchanged_since: float = math.inf) -> str:
        """Give the digest of a file: 64 hexadecimal digits.

        Args:
            file: The file.
            unchanged_since: Seconds since the epoch; a file that took its place later is not the
                one that was loaded then.

        Raises:
            ModelFileError: it cannot be read, or changed too late.
        """
        try:
            with file.open("rb", buffering=0) as opened:
                stamp = _stamp(os.fstat(opened.fileno()))
                if max(stamp[3:]) > unchanged_since * 1e9:
                    raise ModelFileError(
                        f"{file} changed since it was loaded: load it again to keep its states"
                    )
                if _is_digest(known := self._digests.read().get(_name(stamp))):
                    return known
                digest = blake2b(digest_size=DIGEST_BYTES)
                block = memoryview(bytearray(BLOCK_BYTES))
                while n_read := opened.readinto(block):
                    digest.update(block[:n_read])
                after = _stamp(os.fstat(opened.fileno()))
        except OSError as error:
            raise ModelFileError(f"{file} cannot be read: {error.strerror or error}") from error
        if after != stamp:
            raise ModelFileError(f"{file} changed while it was read: wait until it is complete")
        if time.time_ns() - max(stamp[3:]) > SETTLED_NS:
            self._digests.add(_name(stamp), digest.hexdigest())
        return digest.hexdigest()


def _stamp(status: os.stat_result) -> Stamp:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _name(stamp: Stamp) -> str:
    return ":".join(map(str, stamp))


def _is_digest(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) == 2 * DIGEST_BYTES
