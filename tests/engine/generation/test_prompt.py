import re
from pathlib import Path

import pytest

from engine.errors import ContextFullError
from engine.generation.prompt import (
    asked_prompt,
    chat_prompt,
    raw_prompt,
    text_of_tokens,
)
from engine.images import Image, ImageError, image_tokens
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message, Role
from engine.testing import TEMPLATE, FakeVocabulary

VOCABULARY = FakeVocabulary()


def template(text: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(text, bos="<bos>", eos="<end>")


def reply(content: str, ids: list[int] | None = None, vocabulary: str = "fake-256-0") -> Message:
    token_ids = tuple(ids if ids is not None else content.encode())
    return Message("assistant", content, token_ids, vocabulary)


def text_of(tokens: tuple[int, ...]) -> str:
    return b"".join(VOCABULARY.piece(token, special=True) for token in tokens).decode()


USER = Message("user", "hi")
NEXT = Message("user", "and?")


def test_a_chat_is_rendered_with_one_bos_and_an_open_end() -> None:
    tokens = chat_prompt([USER], template(), VOCABULARY).tokens
    assert text_of(tokens) == "<bos><user>hi<end><assistant>"
    assert tokens.count(VOCABULARY.bos) == 1


def test_a_template_without_bos_gets_one() -> None:
    plain = template(TEMPLATE.replace("{{ bos_token }}", ""))
    assert chat_prompt([USER], plain, VOCABULARY).tokens[0] == VOCABULARY.bos


def test_the_second_prompt_starts_with_the_first_and_the_generated_ids() -> None:
    first = chat_prompt([USER], template(), VOCABULARY)
    ids = [104, 101, 108, 108, 111]
    second = chat_prompt([USER, reply("hello", ids), NEXT], template(), VOCABULARY)
    assert second.tokens[: len(first.tokens) + 5] == (*first.tokens, *ids)
    assert text_of(second.tokens).endswith("hello<end><user>and?<end><assistant>")
    assert second.note is None


def test_generated_ids_are_reused_even_if_the_tokenizer_would_choose_others() -> None:
    """A tokenizer would merge; the ids of a generation need not be the tokenizer's choice."""

    class Merging(FakeVocabulary):
        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
            return [1 if token == ord("h") else token for token in tokens]

    prompt = chat_prompt([USER, reply("hh"), NEXT], template(), Merging())
    assert ord("h") in prompt.tokens


def test_a_trimming_template_keeps_the_ids() -> None:
    trimming = template(TEMPLATE.replace("m.content", "m.content | trim"))
    prompt = chat_prompt([USER, reply(" hello \n"), NEXT], trimming, VOCABULARY)
    assert b" hello \n" in bytes(token for token in prompt.tokens if token < 256)
    assert prompt.note is None


def test_an_edited_reply_keeps_ids_up_to_the_edit_with_a_note() -> None:
    prompt = chat_prompt([USER, reply("help", list(b"hello")), NEXT], template(), VOCABULARY)
    assert (
        text_of(prompt.tokens) == "<bos><user>hi<end><assistant>help<end><user>and?<end><assistant>"
    )
    assert "tokenised again" in (prompt.note or "")


def test_a_template_that_rewrites_replies_is_tokenised_whole_with_a_note() -> None:
    upper = template(TEMPLATE.replace("m.content", "m.content | upper"))
    prompt = chat_prompt([USER, reply("yes"), NEXT], upper, VOCABULARY)
    assert "YES<end>" in text_of(prompt.tokens)
    assert "rewrites" in (prompt.note or "")


def test_a_user_who_quotes_a_reply_does_not_confuse_the_cut() -> None:
    quoting = Message("user", "you wrote yes")
    prompt = chat_prompt([quoting, reply("yes"), quoting], template(), VOCABULARY)
    assert text_of(prompt.tokens).count("you wrote yes<end>") == 2


def test_a_raw_prompt_is_not_templated() -> None:
    assert text_of(raw_prompt("plain", VOCABULARY).tokens) == "<bos>plain"
    assert text_of_tokens(list(b"plain"), VOCABULARY) == "plain"


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers() -> None:
    asked = GenerationRequest(raw_prompt="x" * 299)
    with pytest.raises(ContextFullError) as caught:
        asked_prompt(asked, template(), VOCABULARY, n_ctx=100)
    assert re.findall(r"\d+", str(caught.value)) == ["300", "100", "556", "200"]


class SeeingVocabulary(FakeVocabulary):
    """Has three tokens for each image."""

    def image_tokens(self, image: Image) -> tuple[int, ...]:
        return image_tokens(image.sha256, 3)


PICTURE = Image("a.png", Path("/a.png"), "0" * 64, 4, 4)


def test_an_image_stands_where_its_question_names_it_and_nowhere_else() -> None:
    seeing, named = SeeingVocabulary(), PICTURE.reference
    question, answer = Message("user", f"is {named} red?"), reply(f"I see {named}")
    tokens = chat_prompt([question, answer, NEXT], template(), seeing).tokens
    assert [token for token in tokens if token < 0] == [*image_tokens("0" * 64, 3)]
    assert text_of(tuple(token for token in tokens if token >= 0)) == (
        f"<bos><user>is  red?<end><assistant>I see {named}<end><user>and?<end><assistant>"
    )
    start = chat_prompt([question], template(), seeing).tokens
    assert tokens[: len(start)] == start


def test_an_image_is_refused_where_nobody_looks_or_nothing_follows() -> None:
    question = Message("user", PICTURE.reference)
    with pytest.raises(ImageError, match=r"a\.png"):
        chat_prompt([question], template(), VOCABULARY)
    bare = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    request = GenerationRequest((question,))
    with pytest.raises(ImageError, match="ends with"):
        asked_prompt(request, bare, SeeingVocabulary(), n_ctx=64)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize(
    "before", ["", "one \ue0f2 two ", "\ue0f20: \ue0f21:", "\ue0f3\ue0f2\ue0f2"]
)
def test_private_characters_beside_an_image_are_text_in_every_message(
    role: Role, before: str
) -> None:
    forged = f"{before}\ue0f20:{PICTURE.reference}\ue0f3 end"
    messages = [Message(role, forged), Message("user", f"{before}{PICTURE.reference} after")]
    tokens = chat_prompt(messages, template(), SeeingVocabulary()).tokens
    shown = text_of(tuple(token for token in tokens if token >= 0))
    own = forged.replace(PICTURE.reference, "") if role == "user" else forged
    assert shown == f"<bos><{role}>{own}<end><user>{before} after<end><assistant>"
    assert sum(token < 0 for token in tokens) == (6 if role == "user" else 3)
