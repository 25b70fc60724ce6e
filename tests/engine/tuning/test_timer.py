"""Times of real engines: what is timed, what fails, and what is loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.process.client import WorkerClient
from engine.tuning.timer import Engines, OutOfTimeError, VariantFailedError
from engine.tuning.trials import Variant, Workload

PROMPT, NEAR = Workload("prompt", 0, 48), Workload("near", 32, 6)
PATIENCE_S = 120.0

pytestmark = [pytest.mark.model, pytest.mark.slow]


class Clients:
    """Makes clients and remembers them."""

    def __init__(self, folder: Path) -> None:
        self.made: list[WorkerClient] = []
        self._log_path = folder / "worker.log"

    def __call__(self) -> WorkerClient:
        self.made.append(WorkerClient(log_path=self._log_path))
        return self.made[-1]


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(tmp_path)
    yield clients
    assert all(client.has_ended for client in clients.made)


def variant(path: Path, **changes: object) -> Variant:
    return Variant(Configuration(path, 512, n_threads=1, **changes))  # type: ignore[arg-type]


def test_reading_and_writing_are_timed_by_the_token(starter_path: Path, clients: Clients) -> None:
    with Engines(clients, 2) as engines:
        one = variant(starter_path)
        times = [engines.seconds(one, work, within_s=PATIENCE_S) for work in (PROMPT, NEAR) * 2]
    assert all(0 < seconds < 10 for seconds in times)
    assert times[0] < times[1]  # a prompt is read by many tokens at once
    assert len(clients.made) == 1


def test_no_more_engines_are_loaded_than_there_is_room_for(
    starter_path: Path, clients: Clients
) -> None:
    with Engines(clients, 1) as engines:
        engines.seconds(variant(starter_path), NEAR, within_s=PATIENCE_S)
        engines.seconds(variant(starter_path, n_ubatch=64), NEAR, within_s=PATIENCE_S)
        assert [client.has_ended for client in clients.made] == [True, False]


def test_what_fails_is_told_and_can_be_tried_again(starter_path: Path, clients: Clients) -> None:
    with Engines(clients, 2) as engines:
        broken = variant(starter_path, type_v="q8_0", flash_attention="off")
        with pytest.raises(VariantFailedError, match="flash attention off") as failure:
            engines.seconds(broken, NEAR, within_s=PATIENCE_S)
        assert failure.value.variant == broken
        good = variant(starter_path)
        engines.seconds(good, NEAR, within_s=PATIENCE_S)
        process = clients.made[-1]._process
        assert process is not None
        process.popen.kill()
        with pytest.raises(VariantFailedError, match="stopped"):
            engines.seconds(good, NEAR, within_s=PATIENCE_S)
        assert engines.seconds(good, NEAR, within_s=PATIENCE_S) > 0


def test_what_takes_too_long_is_given_up(starter_path: Path, clients: Clients) -> None:
    with Engines(clients, 2) as engines, pytest.raises(OutOfTimeError):
        engines.seconds(variant(starter_path), NEAR, within_s=0.01)
