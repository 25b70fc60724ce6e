import pytest

from engine.backends.base import Backend
from tests.contracts.backend import BackendContract
from tests.fakes import FakeBackend


class TestFakeBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeBackend(n_ctx=64)

    @pytest.fixture
    def line(self) -> list[int]:
        return [(7 * n) % 251 for n in range(64)]
