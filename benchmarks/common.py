"""What the benchmarks share: an engine that is asked and waited for, and an empty page cache."""

import ctypes
import mmap
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.cache.report import CacheSettings
from engine.configuration import Configuration
from engine.events import Finished, PromptReady, TiersChanged, TokensCommitted, WorkerStopped
from engine.process.blocking_client import BlockingClient, EngineStoppedError
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest

OPEN_S = 60.0
"""How long the cache may take to open, in seconds."""
DROP_ALL = Path("/proc/sys/vm/drop_caches")
ONE_PAGE_RESIDENT = 1


@dataclass(frozen=True, slots=True)
class Timed:
    """One reply, and how long its first token took from the moment of asking."""

    first_token_s: float
    reuse: PromptReady
    """Where the prompt's tokens came from."""
    finished: Finished


def load(model: Path, *, cache: CacheSettings | None = None, **fields: object) -> BlockingClient:
    """An engine with the model loaded; `fields` are those of `Configuration`."""
    log_path = Path(tempfile.gettempdir()) / "kvchat-benchmark.log"
    engine = BlockingClient(WorkerClient(log_path=log_path, cache=cache), on_restart=_give_up)
    engine.load(Configuration(model_path=model.resolve(), **fields))  # type: ignore[arg-type]
    return engine


def _give_up(stopped: WorkerStopped) -> None:
    raise EngineStoppedError(stopped)  # what runs after a fallback is not what was asked for


def ask(engine: BlockingClient, request: GenerationRequest) -> Finished:
    """The finished reply to a request."""
    (finished,) = deque(engine.reply(request), maxlen=1)
    assert isinstance(finished, Finished)
    return finished


def ask_timed(engine: BlockingClient, request: GenerationRequest) -> Timed:
    """A reply with the time to its first token, as the front end sees it."""
    started = time.perf_counter()
    first_token_s, reuse = None, None
    for event in engine.reply(request):
        match event:
            case TokensCommitted() if first_token_s is None:
                first_token_s = time.perf_counter() - started
            case PromptReady():
                reuse = event
            case Finished() if first_token_s is not None and reuse is not None:
                return Timed(first_token_s, reuse, event)
    sys.exit("a reply ended before its first token: ask something else")


def wait_for_cache(engine: BlockingClient) -> None:
    """Wait until the tiers are open, which is not part of loading."""
    for event in engine.events(OPEN_S):
        if isinstance(event, TiersChanged) and len(event.report.tiers) > 1:
            return


def tokens_per_second(finished: Finished) -> float:
    """The speed after the prefill, the time between rounds included."""
    if finished.stats.decode_tps is None:
        sys.exit("nothing was generated, so there is no speed")
    return finished.stats.decode_tps


def drop_pages(files: Iterable[Path], *, everything: bool = False) -> str:
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
    """How much of the files lies in the page cache, from 0 to 1 (mincore)."""
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
