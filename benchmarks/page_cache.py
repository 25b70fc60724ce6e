"""Takes files out of the system's page cache, and tells how much of them is left in it."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

DROP_ALL = Path("/proc/sys/vm/drop_caches")
ONE_PAGE_RESIDENT = 1


def drop(files: Iterable[Path], *, everything: bool = False) -> str:
    """Write out and drop the pages of files, and say by what means.

    With `everything`, the pages of all files of the machine go where that is allowed.
    """
    os.sync()
    if everything:
        try:
            DROP_ALL.write_text("3")
        except OSError:
            pass
        else:
            return "the page cache of the whole machine dropped (drop_caches)"
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return "the files' pages dropped (sync, then posix_fadvise DONTNEED)"


def resident_share(files: Iterable[Path]) -> float:
    """Give how much of the files lies in the page cache, from 0 to 1 (mincore)."""
    n_resident = n_pages = 0
    for path in files:
        if path.stat().st_size:
            resident, pages = _pages(path)
            n_resident += resident
            n_pages += pages
    return n_resident / n_pages if n_pages else 0.0


def _pages(path: Path) -> tuple[int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    n_pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        flags = (ctypes.c_ubyte * n_pages)()
        refused = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), flags
        )
        del anchor  # the mapping cannot be closed while something points into it
    if refused:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(flag & ONE_PAGE_RESIDENT for flag in flags), n_pages
