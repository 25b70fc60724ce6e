"""What is said of a draft before it is loaded, in the words of `kvchat pairs`."""

from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.errors import IncompatiblePairError
from engine.model.architecture import read_model
from engine.model.header_cache import read_facts
from engine.model.library import read_headers
from engine.planning.draft_advice import check_draft
from engine.planning.pairs import options_of
from tests.support.drafting_models import TOKENS, drafting_model


def beside(target: Path, draft: Path) -> Configuration:
    return Configuration(target, 512, n_gpu_layers=0, draft=DraftConfiguration(draft, 512))


def reason_of_pairs(target: Path) -> str:
    """Give what `kvchat pairs` says of the one model beside a target."""
    found = options_of(read_model(target), read_headers([target.parent]), read_facts(target), "cpu")
    (only,) = (*found.drafts, *found.misfits)
    return only.advice.reason


def test_a_draft_larger_than_its_target_is_warned_of_in_the_words_of_pairs(tmp_path: Path) -> None:
    target = drafting_model(tmp_path / "target.gguf", 4)
    draft = drafting_model(tmp_path / "draft.gguf", 40)
    said = check_draft(beside(target, draft)) or ""
    assert said.startswith("draft.gguf will not make target.gguf faster: the draft reads ")
    assert reason_of_pairs(target) in said


def test_a_draft_of_other_tokens_is_refused_in_the_words_of_pairs(tmp_path: Path) -> None:
    target = drafting_model(tmp_path / "target.gguf", 40)
    draft = drafting_model(tmp_path / "draft.gguf", 1, (*TOKENS[:9], "odd", *TOKENS[10:]))
    with pytest.raises(IncompatiblePairError) as refused:
        check_draft(beside(target, draft))
    assert reason_of_pairs(target) in str(refused.value)
    assert "token 9 is 'token 9' in the target and 'odd' in the draft" in str(refused.value)


def test_a_small_draft_needs_no_word(tmp_path: Path) -> None:
    target = drafting_model(tmp_path / "target.gguf", 40)
    assert check_draft(beside(target, drafting_model(tmp_path / "draft.gguf", 1))) is None
    assert check_draft(Configuration(target, 512)) is None


def test_a_file_that_cannot_be_read_is_left_to_the_loader(tmp_path: Path) -> None:
    target = drafting_model(tmp_path / "target.gguf", 40)
    assert check_draft(beside(target, tmp_path / "nowhere.gguf")) is None
