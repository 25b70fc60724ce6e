"""Pairs that are refused or let through by their headers alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import IncompatiblePairError, ModelFileError
from engine.model.architecture import read_model
from engine.model.catalog import find_entry
from engine.model.gguf import GgufFile, read_gguf
from engine.model.vocabulary import check_headers, difference_of, read_tokens, vocabulary_facts
from tests.support.gguf_files import header, llama_values, write

N_TOKENS = 300
TOKENS = [f"token {n}" for n in range(N_TOKENS)]


def model(path: Path, tokens: list[str], pre: str = "default", **changes: object) -> GgufFile:
    values = llama_values() | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.tokens": tokens,
    }
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return read_gguf(write(path, header(values)))


def header_difference(target: GgufFile, draft: GgufFile) -> str | None:
    return difference_of(
        (target.path, vocabulary_facts(target)), (draft.path, vocabulary_facts(draft))
    )


@pytest.fixture
def target(tmp_path: Path) -> GgufFile:
    return model(tmp_path / "target.gguf", TOKENS)


def test_headers_of_other_vocabularies_are_refused(starter_path: Path, gemma_path: Path) -> None:
    starter, gemma = read_model(starter_path).file, read_model(gemma_path).file
    assert header_difference(starter, starter) is None
    with pytest.raises(IncompatiblePairError, match=r"tokenizer\.ggml\.\w+ is .* in the target"):
        check_headers(starter, gemma)
    llama_2, llama_3 = (find_entry(name).header() for name in ("llama-2-7b", "llama-3.2-1b"))
    assert "more than 128 tokens" in str(header_difference(llama_2, llama_3))


@pytest.mark.parametrize("place", [5, 6, 150, N_TOKENS - 1])
def test_the_first_token_that_differs_is_named(
    target: GgufFile, tmp_path: Path, place: int
) -> None:
    tokens = [*TOKENS[:place], "another", *TOKENS[place + 1 :]]
    tokens[-1] = "the last differs too" if place < N_TOKENS - 1 else "another"
    draft = model(tmp_path / "draft.gguf", tokens)
    assert header_difference(target, draft) == (
        f"token {place} is 'token {place}' in the target and 'another' in the draft"
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_padding_at_the_end_is_fine(target: GgufFile, tmp_path: Path, swapped: bool) -> None:
    padded = model(tmp_path / "draft.gguf", [*TOKENS, *(f"<pad {n}>" for n in range(128))])
    pair = (padded, target) if swapped else (target, padded)
    assert header_difference(*pair) is None


def test_more_padding_than_llama_cpp_takes_is_refused(target: GgufFile, tmp_path: Path) -> None:
    padded = model(tmp_path / "draft.gguf", [*TOKENS, *(f"<pad {n}>" for n in range(129))])
    assert "the target has 300 tokens and the draft 429" in str(header_difference(target, padded))


def test_the_first_five_tokens_may_have_other_names(target: GgufFile, tmp_path: Path) -> None:
    draft = model(tmp_path / "draft.gguf", [*(f"<{n}>" for n in range(5)), *TOKENS[5:]])
    assert header_difference(target, draft) is None


def test_equal_tokens_cut_in_another_way_are_fine(target: GgufFile, tmp_path: Path) -> None:
    draft = model(tmp_path / "draft.gguf", TOKENS, pre="another")
    assert header_difference(target, draft) is None
    elsewhere = replace(draft, origin="https://example.org/draft.gguf")
    assert "tokenizer.ggml.pre" in str(header_difference(target, elsewhere))


def test_a_bos_token_matters_where_it_is_added(target: GgufFile, tmp_path: Path) -> None:
    draft = model(tmp_path / "draft.gguf", TOKENS, bos_token_id=2)
    assert header_difference(target, draft) is None
    adding = [
        model(tmp_path / f"{bos}.gguf", TOKENS, add_bos_token=True, bos_token_id=bos)
        for bos in (1, 2)
    ]
    assert header_difference(*adding) == (
        "tokenizer.ggml.bos_token_id is 1 in the target and 2 in the draft"
    )


def test_long_vocabularies_that_a_header_steps_over_are_compared_too(
    starter_path: Path, tmp_path: Path
) -> None:
    tokens = [f"token {n}" for n in range(5000)]
    target = model(tmp_path / "target.gguf", tokens)
    assert "tokenizer.ggml.tokens" not in target.values
    other = model(tmp_path / "draft.gguf", [*tokens[:4321], "x", *tokens[4322:]])
    assert "token 4321 is" in str(header_difference(target, other))
    starter = read_gguf(starter_path)
    assert header_difference(starter, read_gguf(starter_path)) is None


def test_a_file_that_changed_after_its_header_was_read_is_an_error(
    target: GgufFile, tmp_path: Path
) -> None:
    draft = model(tmp_path / "draft.gguf", TOKENS)
    facts = vocabulary_facts(draft)
    with pytest.raises(ModelFileError, match="changed"):
        read_tokens(draft.path, replace(facts, tokens_start=facts.tokens_start + 3))
    draft.path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        header_difference(target, draft)
