"""What contexts are opened with."""

from pathlib import Path

import pytest

from engine.configuration import MAX_DRAFT, Configuration, DraftConfiguration


@pytest.mark.parametrize(
    ("n_batch", "n_ubatch", "expected"),
    [(2048, 512, 512), (256, 512, 256), (2048, 1, 1 + MAX_DRAFT), (8, 8, 1 + MAX_DRAFT)],
)
def test_the_longest_draft_fits_a_batch_however_small_micro_batches_are(
    tmp_path: Path, n_batch: int, n_ubatch: int, expected: int
) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    wanted = Configuration(model, n_ctx=512, n_batch=n_batch, n_ubatch=n_ubatch)
    assert wanted.n_batch_of_kvchat == expected


@pytest.mark.parametrize(("n_slots", "n_rows"), [(1, 1 + MAX_DRAFT), (40, 40)])
def test_a_batch_has_a_row_for_each_slot_or_llama_cpp_would_end_the_process(
    n_slots: int, n_rows: int
) -> None:
    settings = Configuration(Path("m.gguf"), 8192, n_ubatch=8, n_slots=n_slots)
    assert settings.n_rows == n_rows
    assert settings.n_batch_of_kvchat >= n_rows


def test_the_draft_has_one_sequence_however_many_chats_the_target_holds(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    wanted = Configuration(
        model, 8192, n_slots=4, kv_unified=True, draft=DraftConfiguration(model, n_ctx=1024)
    )
    own = wanted.of_draft("kvchat")
    assert own is not None
    assert (own.n_slots, own.n_ctx) == (1, 1024)
