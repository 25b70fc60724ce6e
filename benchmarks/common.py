"""An engine that benchmarks ask and wait for."""

import sys
import tempfile
from collections import deque
from pathlib import Path

from engine.cache.report import CacheSettings
from engine.configuration import Configuration
from engine.events import Finished, WorkerStopped
from engine.process.blocking_client import BlockingClient, EngineStoppedError
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest


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


def tokens_per_second(finished: Finished) -> float:
    """The speed after the prefill, the time between rounds included."""
    if finished.stats.decode_tps is None:
        sys.exit("nothing was generated, so there is no speed")
    return finished.stats.decode_tps
