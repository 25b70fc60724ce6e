"""One user with the starter model, for each journey."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kvchat import Kvchat

SETTINGS = "[chat]\ntemperature = 0.0\nmax_tokens = 40\n"


@pytest.fixture
def kvchat(tmp_path: Path, starter_path: Path) -> Iterator[Kvchat]:
    user = Kvchat(tmp_path / "user", [starter_path], SETTINGS)
    yield user
    user.close()
