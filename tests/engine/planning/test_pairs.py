"""Drafts on this machine and of the catalogue, with verdicts by their headers."""

from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.errors import IncompatiblePairError
from engine.model.architecture import read_model
from engine.model.catalog import entries, find_entry
from engine.model.library import read_facts, read_headers
from engine.planning.draft_advice import MachineKind, Worth, check_draft
from engine.planning.pairs import DraftOptions, entry_of, options_of
from tests.support.drafting_models import TOKENS, drafting_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with a target of 40 layers."""
    drafting_model(tmp_path / "models" / "target.gguf", 40)
    return tmp_path / "models"


def pairs(folder: Path, name: str = "target", machine: MachineKind = "gpu") -> DraftOptions:
    path = folder / f"{name}.gguf"
    return options_of(read_model(path), read_headers([folder]), read_facts(path), machine)


def test_small_drafts_of_the_same_tokens_come_first_and_large_ones_are_warned_of(
    folder: Path,
) -> None:
    for name, n_layers in (("middle", 10), ("small", 1), ("larger", 80), ("as-large", 40)):
        drafting_model(folder / f"{name}.gguf", n_layers)
    found = pairs(folder)
    assert [each.name for each in found.drafts] == ["small", "middle", "as-large", "larger"]
    worths = [each.advice.worth for each in found.drafts]
    assert worths == [Worth.USE, Worth.DEPENDS, Worth.NEVER, Worth.NEVER]
    assert found.best == found.drafts[0]
    assert found.drafts[-1].advice.reason.startswith("the draft model reads 2.0 times as many")
    assert found.drafts[2].advice.reason.startswith("the draft model reads as many bytes per token")


def test_the_target_and_its_copies_are_no_candidates(folder: Path) -> None:
    copy = folder / "elsewhere" / "the same under another name.gguf"
    copy.parent.mkdir()
    copy.write_bytes((folder / "target.gguf").read_bytes())
    found = pairs(folder)
    assert (found.drafts, found.unsuitable, found.best) == ((), (), None)


def test_a_misfit_names_the_token_that_differs(folder: Path) -> None:
    drafting_model(folder / "other.gguf", 1, (*TOKENS[:77], "odd", *TOKENS[78:]))
    drafting_model(folder / "kind.gguf", 1, model="llama")
    found = pairs(folder)
    assert {each.name: each.advice.reason for each in found.unsuitable} == {
        "kind": "tokenizer.ggml.model is gpt2 in the target and llama in the draft",
        "other": "token 77 is 'token 77' in the target and 'odd' in the draft",
    }
    assert found.best is None


def test_a_draft_whose_file_is_gone_is_a_misfit_and_no_crash(folder: Path) -> None:
    gone = drafting_model(folder / "gone.gguf", 1)
    read = read_headers([folder])
    gone.unlink()
    target = folder / "target.gguf"
    (misfit,) = options_of(read_model(target), read, read_facts(target), "cpu").unsuitable
    assert "cannot be read" in misfit.advice.reason


def test_a_head_of_another_model_is_named_for_what_it_is(folder: Path) -> None:
    path = drafting_model(folder / "head.gguf", 1)
    path.write_bytes(
        path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x06\0\0\0\0\0\0\0eagle3", 1)
    )
    (misfit,) = pairs(folder).unsuitable
    assert "only with its own target" in misfit.advice.reason


def test_drafts_of_the_catalogue_that_are_not_here_are_named_with_their_place(
    tmp_path: Path,
) -> None:
    target = find_entry("qwen2.5-7b").model()
    found = options_of(target, [], None, "gpu")
    assert found.problem is None
    assert found.missing[0].name == "qwen2.5-0.5b"
    assert all((each.published_as or "").startswith("Qwen/") for each in found.missing)
    assert all(each.path is None for each in found.missing)
    drafting_model(tmp_path / "Qwen2.5-0.5B-Instruct-Q8_0.gguf", 1)
    there = options_of(target, read_headers([tmp_path]), None, "gpu")
    assert "qwen2.5-0.5b" not in [each.name for each in there.missing]


def test_every_entry_is_found_by_the_name_of_its_own_file() -> None:
    wrong = {
        entry.name: found.name if (found := entry_of(f"{entry.name}.Q4_K_M")) else None
        for entry in entries()
        if entry_of(f"{entry.name}.Q4_K_M") != entry
    }
    assert wrong == {}


def beside(target: Path, draft: Path) -> Configuration:
    return Configuration(target, 512, n_gpu_layers=0, draft=DraftConfiguration(draft, 512))


def reason_of_pairs(target: Path) -> str:
    """The reason of `kvchat pairs` for one model and a target."""
    found = options_of(read_model(target), read_headers([target.parent]), read_facts(target), "cpu")
    (only,) = (*found.drafts, *found.unsuitable)
    return only.advice.reason


def test_a_draft_larger_than_its_target_is_warned_of_in_the_words_of_pairs(tmp_path: Path) -> None:
    target = drafting_model(tmp_path / "target.gguf", 4)
    draft = drafting_model(tmp_path / "draft.gguf", 40)
    warning = check_draft(beside(target, draft)) or ""
    assert warning.startswith("draft.gguf will not make target.gguf faster: the draft model reads ")
    assert reason_of_pairs(target) in warning


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
