"""Random sessions on the engine: some find nothing, and what is broken on purpose is found."""

from pathlib import Path

import pytest
from walker.sessions import run_sessions

from engine.cache.recall import Recall
from engine.cache.slots import Slot
from engine.testing import FakeSequence


@pytest.mark.parametrize("n_sessions", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_random_sessions_find_nothing(n_sessions: int, tmp_path: Path) -> None:
    assert run_sessions(n_sessions, 1000, tmp_path) == []


def test_a_sequence_that_holds_other_tokens_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crop = FakeSequence.crop

    def crop_badly(self: FakeSequence, length: int) -> None:
        crop(self, length)
        if length > 4:
            self.cells[-1].token = 7

    monkeypatch.setattr(FakeSequence, "crop", crop_badly)
    assert any(", alone (" in problem for problem in run_sessions(6, 0, tmp_path))


def test_a_slot_that_is_never_given_back_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Recall.end

    def end_without(self: Recall, slot: Slot) -> None:
        end(self, slot)
        slot.is_busy = True

    monkeypatch.setattr(Recall, "end", end_without)
    assert run_sessions(2, 0, tmp_path)
