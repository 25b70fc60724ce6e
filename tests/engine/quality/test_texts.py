from pathlib import Path

import pytest

from engine.quality import texts as texts_module
from engine.quality.needles import needles
from engine.quality.records import QualityError
from engine.quality.texts import (
    Text,
    clean_name,
    digest_of,
    documents_of,
    read_text_file,
)
from engine.testing import FakeVocabulary

VOCABULARY = FakeVocabulary()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.py", "code"), ("a.RS", "code"), ("a.md", "document"), ("README", "document")],
)
def test_code_is_recognised_by_its_suffix(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("a text")
    assert read_text_file(tmp_path / name).kind == kind


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"a\0b", "NUL bytes"), (b"caf\xe9", "UTF-8")],
)
def test_binary_data_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(QualityError, match=message):
        read_text_file(tmp_path / "a.txt")


def test_a_missing_or_too_large_text_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QualityError, match="cannot be read"):
        read_text_file(tmp_path / "a.txt")
    monkeypatch.setattr(texts_module, "TEXT_BYTES", 10)
    (tmp_path / "a.txt").write_text("a" * 11)
    with pytest.raises(QualityError, match="limit of 10 bytes"):
        read_text_file(tmp_path / "a.txt")


def test_a_long_text_goes_on_as_documents_of_its_own() -> None:
    documents = documents_of([Text("t", "chat", "a" * 250)], VOCABULARY, 101)
    assert [(each.name, len(each.tokens)) for each in documents] == [
        ("t 1/3", 101), ("t 2/3", 101), ("t 3/3", 51),
    ]  # fmt: skip
    assert all(each.tokens[0] == VOCABULARY.bos for each in documents)


def test_a_text_that_is_named_twice_is_read_once() -> None:
    texts = [
        Text("a", "chat", "a" * 100),
        Text("b", "chat", "b" * 100),
        Text("c", "code", "a" * 100),
    ]
    assert [each.name for each in documents_of(texts, VOCABULARY, 500)] == ["a", "b"]


def test_control_tokens_stay_letters() -> None:
    document = documents_of([Text("t", "chat", "<end>" * 20)], VOCABULARY, 500)[0]
    assert VOCABULARY.eos not in document.tokens


def test_a_digest_is_that_of_the_tokens() -> None:
    one = documents_of([Text("a", "chat", "a" * 100)], VOCABULARY, 500)
    named = documents_of([Text("b", "chat", "a" * 100)], VOCABULARY, 500)
    other = documents_of([Text("a", "chat", "a" * 99 + "b")], VOCABULARY, 500)
    assert digest_of(one) == digest_of(named) != digest_of(other)


def test_answers_are_found_in_the_tokens_of_the_whole_text() -> None:
    hay = [Text("h", "document", "A line of hay.\n" * 400)]
    for document in needles(VOCABULARY, hay, 4096):
        text_again = b"".join(map(VOCABULARY.piece, document.tokens)).decode()
        assert len(document.tokens) <= 4096
        for answer in document.answers:
            text = b"".join(map(VOCABULARY.piece, document.tokens[answer.start : answer.stop]))
            assert text.startswith(b" ")
            assert answer.start > document.first
            assert text_again.count(text.decode() + ".") == 2, "hidden once, asked once"


def test_needles_lie_at_the_depths_that_they_are_named_by() -> None:
    hay = [Text("h", "document", "A line of hay.\n" * 400)]
    document = needles(VOCABULARY, hay, 3000)[0]
    text_again = b"".join(map(VOCABULARY.piece, document.tokens)).decode()
    length = text_again.index("Numbers that the text above names")
    for answer in document.answers:
        text = b"".join(map(VOCABULARY.piece, document.tokens[answer.start : answer.stop])).decode()
        assert text_again.index(text + ".") / length == pytest.approx(
            float(answer.name.rstrip("%")) / 100, abs=0.12
        )


@pytest.mark.parametrize("n_ctx", [512, 1024, 1025, 1030, 2560, 2563, 4096])
def test_needles_are_hidden_in_any_context(n_ctx: int) -> None:
    hay = [Text("h", "document", "A line of hay.\n" * 400)]
    found = needles(VOCABULARY, hay, n_ctx)
    assert len(found) == 1 + (n_ctx > 2560)
    assert all(len(each.tokens) <= n_ctx and len(each.answers) == 5 for each in found)


def test_a_name_in_a_report_is_harmless_short_and_never_empty() -> None:
    assert clean_name("a\x1b[2J\u202e.md") == "a?[2J?.md"
    assert len(clean_name("x" * 300)) == 100
    assert clean_name(" ") == "unnamed"
