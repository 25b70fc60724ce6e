import pytest

from engine.errors import ModelFileError
from engine.model.catalog import entries, find_entry
from engine.model.draft_pairs import FAMILIES, recommended_drafts, vocabulary_family


def drafts(target: str) -> list[str]:
    return [pair.draft for pair in recommended_drafts(target)]


def test_drafts_come_from_the_family_of_the_vocabulary_the_cheapest_first() -> None:
    assert drafts("llama-3.1-8b") == ["llama-3.2-1b"]
    assert drafts("llama-3.1-70b") == ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"]
    assert drafts("qwen2.5-32b")[:2] == ["qwen2.5-0.5b", "qwen2.5-1.5b"]
    assert drafts("starcoder2-15b") == ["starcoder2-3b"]


def test_a_name_that_looks_alike_is_no_draft() -> None:
    assert drafts("codellama-7b") == ["tinyllama-1.1b"]
    assert "llama-3.2-1b" not in drafts("llama-2-7b")
    assert not set(drafts("qwen3-32b")) & set(drafts("qwen2.5-32b"))


def test_a_model_without_kin_has_no_draft_and_an_unknown_one_is_refused() -> None:
    assert recommended_drafts("phi-2") == ()
    with pytest.raises(ModelFileError, match="no model 'qwenn'"):
        recommended_drafts("qwenn")


def test_a_draft_is_much_smaller_than_its_target() -> None:
    for entry in entries():
        for pair in recommended_drafts(entry.name):
            assert 0 < pair.share <= 0.2
            target, draft = find_entry(pair.target), find_entry(pair.draft)
            assert abs(target.n_vocab - draft.n_vocab) <= 128


def test_every_family_has_members() -> None:
    found = {vocabulary_family(entry.name) for entry in entries()}
    assert set(FAMILIES) <= found
