"""Converts messages to prompt tokens, reusing the token ids of generated replies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from engine.backends.base import Vocabulary, common_prefix
from engine.errors import ContextFullError, TokenError
from engine.generation.reasoning import Reasoning, Thought
from engine.images import Image, ImageError, images_in, parts_of
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message

FOR_THE_REPLY = 256
"""Tokens beyond the prompt in the context size that an error suggests."""

UNLIKE_QUESTIONS = ("a", "7", "- Z")
"""Questions without a common prefix."""

_MARK = "\ue0f0{}\ue0f1"
_IMAGE_MARK = "\ue0f2{}:"
"""Precedes an image in a rendered text, with a number so that no message contains the mark."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, including the start of a continued reply."""

    tokens: tuple[int, ...]
    note: str | None = None
    """Why ids of a message were not reused."""
    continues: tuple[int, ...] = ()
    """The start of a continued reply: the last of `tokens`."""
    opens: str = ""
    """The prompt's end with which the template opens the thinking."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of the rendered text and its ids, if known."""

    text: str
    token_ids: tuple[int, ...] = ()


def asked_prompt(
    request: GenerationRequest,
    template: ChatTemplate,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None = None,
    *,
    n_ctx: int,
) -> Prompt:
    """The prompt of a request, including the reply that it continues.

    Raises:
        ContextFullError: it is empty, or has more than `n_ctx` tokens.
        ImageError: it has images, and there is no projector or that refuses one.
        TemplateError: from the template.
        TokenError: a given token is not in the vocabulary.
    """
    if request.prompt_tokens is not None:
        prompt = Prompt(checked_tokens(request.prompt_tokens, vocabulary))
    elif request.reads_only:
        prompt = lasting_prompt(request.messages, template, vocabulary, reasoning)
    elif request.raw_prompt is not None:
        prompt = raw_prompt(request.raw_prompt, vocabulary)
    else:
        thinks = may_think(request)
        prompt = chat_prompt(request.messages, template, vocabulary, reasoning, thinks=thinks)
    if request.continues_text:  # without `opens`, which the template writes
        text = request.continues_text.removeprefix(prompt.opens)
        ids = ids_within(request.continues, vocabulary.n_tokens)
        reused, rest = _leading_ids(Piece(text, ids), vocabulary)
        start = (*reused, *_tokenize(rest, vocabulary, is_start=False))
    else:
        start = checked_tokens(request.continues, vocabulary)
    prompt = replace(prompt, tokens=(*prompt.tokens, *start), continues=start)
    n_prompt = len(prompt.tokens)
    if n_prompt == 0:
        raise ContextFullError("the prompt is empty: write a message")
    if prompt.tokens[-1] < 0:
        raise ImageError("the prompt ends with an image: add text after the image")
    if n_prompt > n_ctx:
        raise ContextFullError(
            f"the prompt has {n_prompt:,} tokens but n_ctx is {n_ctx:,}: raise n_ctx to at least "
            f"{n_prompt + FOR_THE_REPLY:,}, or drop {n_prompt - n_ctx:,} tokens of the prompt or "
            "the chat"
        )
    return prompt


def may_think(request: GenerationRequest) -> bool:
    """Whether the reply may begin with thinking, which a grammar excludes."""
    sampling = request.sampling
    is_free = request.grammar is None and not sampling.json_schema and not sampling.grammar
    return is_free and sampling.thinking != "off"


def chat_prompt(
    messages: Sequence[Message],
    template: ChatTemplate,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None = None,
    *,
    thinks: bool = True,
) -> Prompt:
    """The prompt of a chat.

    Tokenising a reply's text again may give other ids than were generated, which would invalidate
    the cache from there on. So the rendered text is split at the replies, and each reply's ids are
    reused while their text matches (except surrounding white space, which templates trim). After
    the first difference the text is tokenised. If the template omits the thinking of a reply, the
    ids of its answer are reused.

    Raises:
        TemplateError: from the template.
    """
    mark = _unused_mark(messages)
    messages = [_with_marks(_with_usable_ids(message, vocabulary), mark) for message in messages]
    if reasoning is not None and reasoning.has_field:
        messages = [_with_thought(message, vocabulary) for message in messages]

    def render(shown: Sequence[Message]) -> str:
        if reasoning is None or thinks:
            return template.render(shown)
        if reasoning.switch is not None:
            return template.render(shown, **{reasoning.switch: False})
        return reasoning.close_thinking(template.render(shown))

    rendered = render(messages)
    opens = reasoning.opened_by(rendered) if reasoning is not None and thinks else ""
    pieces = pieces_of(
        messages,
        render,
        vocabulary.identifier,
        rendered,
        forms=lambda reply: _forms(reply, vocabulary),
    )
    if pieces is None:
        note = "the chat template rewrites earlier replies, so they were tokenised again"
        tokens = _tokenize(rendered, vocabulary, is_start=True, mark=mark)
        return Prompt(tuple(tokens), note, opens=opens)
    return replace(_join(pieces, vocabulary, mark), opens=opens)


def lasting_prompt(
    messages: Sequence[Message],
    template: ChatTemplate,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None = None,
    *,
    thinks: bool = True,
) -> Prompt:
    """The prefix of all prompts that continue a chat.

    After a question the template may render less once a reply follows than before it, such as the
    opening of the thinking.

    Raises:
        TemplateError: from the template.
    """
    asked: Sequence[tuple[Message, ...]] = [(Message("user", text),) for text in UNLIKE_QUESTIONS]
    if messages and messages[-1].role == "user":
        asked = [(Message("assistant", text), Message("user", text)) for text in UNLIKE_QUESTIONS]
    prompts = [
        chat_prompt((*messages, *next_), template, vocabulary, reasoning, thinks=thinks).tokens
        for next_ in asked
    ]
    length = min(common_prefix(prompts[0], other) for other in prompts[1:])
    return Prompt(prompts[0][:length])


def raw_prompt(text: str, vocabulary: Vocabulary) -> Prompt:
    """The prompt of a text without a template."""
    return Prompt(tuple(vocabulary.tokenize(text, add_special=True, parse_special=True)))


def checked_tokens(
    tokens: Sequence[int], vocabulary: Vocabulary, what: str = "token"
) -> tuple[int, ...]:
    """The tokens as a tuple.

    Raises:
        TokenError: a token is not in the vocabulary.
    """
    for place, token in enumerate(tokens, 1):
        if not 0 <= token < vocabulary.n_tokens:
            raise TokenError(
                f"{what} {token} at position {place:,} is not in this model's vocabulary (0 to "
                f"{vocabulary.n_tokens - 1:,})"
            )
    return tuple(tokens)


def ids_within(ids: Sequence[int], n_vocab: int | None) -> tuple[int, ...]:
    """The ids; none if one is outside the vocabulary, as in a chat file made by another program."""
    is_known = not ids or (min(ids) >= 0 and (n_vocab is None or max(ids) < n_vocab))
    return tuple(ids) if is_known else ()


def text_of_tokens(
    token_ids: Sequence[int], vocabulary: Vocabulary, *, special: bool = False
) -> str:
    """The text of token ids, with U+FFFD for invalid UTF-8; control tokens only if `special`."""
    pieces = (vocabulary.piece(token, special=special) for token in token_ids)
    return b"".join(pieces).decode("utf-8", "replace")


def _with_usable_ids(message: Message, vocabulary: Vocabulary) -> Message:
    ids = message.token_ids or ()
    is_own = message.vocabulary_id == vocabulary.identifier
    return replace(message, token_ids=ids_within(ids, vocabulary.n_tokens) if is_own else ())


def _with_thought(message: Message, vocabulary: Vocabulary) -> Message:
    """A reply with its thinking in a separate field, as the template expects it."""
    thought = Thought.of(message.content) if message.role == "assistant" else None
    if thought is None:
        return message
    ids = _ids_at_end(message.token_ids or (), thought.answer, vocabulary)
    return replace(message, content=thought.answer, token_ids=ids, thought=thought.text)


def _ids_at_end(ids: Sequence[int], text: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The last ids whose text is exactly `text`; empty if there are none."""
    wanted, n_bytes, start = len(text.encode()), 0, len(ids)
    while start and n_bytes < wanted:
        start -= 1
        n_bytes += len(vocabulary.piece(ids[start]))
    reused = tuple(ids[start:])
    return reused if text and text_of_tokens(reused, vocabulary) == text else ()


def pieces_of(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], str],
    vocabulary_id: str,
    rendered: str,
    *,
    forms: Callable[[Message], Sequence[tuple[Piece, ...]]],
) -> list[Piece] | None:
    """The rendered text split at the replies with ids; None if the template rewrites replies.

    Ids of other vocabularies are ignored. `forms` returns the ways in which a template may render
    a reply.
    """
    known = [
        index
        for index, message in enumerate(messages)
        if message.token_ids and message.vocabulary_id == vocabulary_id
    ]
    if not known:
        return [Piece(rendered)]
    marked = render(
        [
            replace(message, content=_MARK.format(index)) if index in known else message
            for index, message in enumerate(messages)
        ]
    )
    return _cut(marked, [forms(messages[index]) for index in known], known, rendered)


def _forms(reply: Message, vocabulary: Vocabulary) -> list[tuple[Piece, ...]]:
    """Forms in which a template may render a reply: whole or its answer, trimmed or not."""
    ids = reply.token_ids or ()
    forms = [Piece(text, ids) for text in trim_variants(reply.content)]
    thought = Thought.of(reply.content)
    if thought is None:
        return [(form,) for form in forms]
    own = text_of_tokens(ids, vocabulary)
    opened = reply.content.removesuffix(own) if own else reply.content
    of_answer = _ids_at_end(ids, thought.answer, vocabulary)
    whole: list[tuple[Piece, ...]] = [(form,) for form in forms]
    if opened and opened != reply.content:
        whole = [(Piece(opened), Piece(text, ids)) for text in (own, own.rstrip())]
    return [*whole, *((Piece(text, of_answer),) for text in trim_variants(thought.answer))]


def trim_variants(text: str) -> tuple[str, ...]:
    """A text unchanged and as templates may trim it."""
    return text, text.strip(), text.rstrip(), text.lstrip()


def _cut(
    marked: str,
    forms: Sequence[Sequence[tuple[Piece, ...]]],
    indices: Sequence[int],
    rendered: str,
) -> list[Piece] | None:
    pieces: list[Piece] = []
    at = 0
    for of_reply, index in zip(forms, indices, strict=True):
        before, found, marked = marked.partition(_MARK.format(index))
        if not found or not rendered.startswith(before, at):
            return None
        at += len(before)
        written = next((form for form in of_reply if rendered.startswith(_text(form), at)), None)
        if written is None:
            return None
        pieces += [Piece(before), *written]
        at += len(_text(written))
    if rendered[at:] != marked:
        return None
    return [*pieces, Piece(marked)]


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _join(pieces: Sequence[Piece], vocabulary: Vocabulary, mark: str) -> Prompt:
    tokens: list[int] = []
    pending = ""
    note = None
    for piece in pieces:
        reused, rest = _reused_ids(piece, vocabulary)
        if reused:
            tokens += _tokenize(pending, vocabulary, is_start=not tokens, mark=mark)
            tokens += reused
            pending = ""
        if piece.token_ids and rest:
            note = "a reply was changed after it was generated, so its end was tokenised again"
        pending += rest
    tokens += _tokenize(pending, vocabulary, is_start=not tokens, mark=mark)
    return Prompt(tuple(tokens), note)


def _reused_ids(piece: Piece, vocabulary: Vocabulary) -> tuple[tuple[int, ...], str]:
    """The leading ids whose text matches the piece, and the remaining text."""
    if not piece.token_ids:
        return (), piece.text
    if text_of_tokens(piece.token_ids, vocabulary).strip() == piece.text.strip():
        return piece.token_ids, ""
    return _leading_ids(piece, vocabulary)


def _leading_ids(piece: Piece, vocabulary: Vocabulary) -> tuple[tuple[int, ...], str]:
    """As `_reused_ids`, but exact, including white space."""
    data = piece.text.encode()
    n_bytes = 0
    for n_reused, token in enumerate(piece.token_ids):
        part = vocabulary.piece(token)
        if data[n_bytes : n_bytes + len(part)] != part:
            return _at_character(piece.token_ids[:n_reused], data, n_bytes, vocabulary)
        n_bytes += len(part)
    return _at_character(piece.token_ids, data, n_bytes, vocabulary)


def _at_character(
    reused: tuple[int, ...], data: bytes, n_bytes: int, vocabulary: Vocabulary
) -> tuple[tuple[int, ...], str]:
    """Drop trailing ids until the remaining text starts at a character."""
    while reused and n_bytes < len(data) and data[n_bytes] & 0xC0 == 0x80:
        n_bytes -= len(vocabulary.piece(reused[-1]))
        reused = reused[:-1]
    return reused, data[n_bytes:].decode("utf-8", "replace")


def text_tokens(text: str, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a question's text, including those of its images.

    Raises:
        ImageError: it has an image, and there is no projector or that refuses it.
    """
    question = Message("user", text)
    mark = _unused_mark([question])
    marked = _with_marks(question, mark).content
    return _tokenize(marked, vocabulary, is_start=False, mark=mark)


def _unused_mark(messages: Sequence[Message]) -> str:
    marks = (_IMAGE_MARK.format(number) for number in count())
    return next(mark for mark in marks if not any(mark in each.content for each in messages))


def _with_marks(message: Message, mark: str) -> Message:
    """A question with marks before its images; image references in replies are text."""
    if message.role != "user" or not images_in(message.content):
        return message
    parts = (
        part if isinstance(part, str) else mark + part.reference
        for part in parts_of(message.content)
    )
    return replace(message, content="".join(parts))


def _tokenize(
    text: str, vocabulary: Vocabulary, *, is_start: bool, mark: str | None = None
) -> list[int]:
    """The tokens of a rendered text, with images at their marks."""
    first, *marked = [text] if mark is None else text.split(mark)
    tokens: list[int] = []
    if is_start:
        tokens += _tokenize_start(first, vocabulary)
    elif first:
        tokens += vocabulary.tokenize(first, add_special=False, parse_special=True)
    for rest in marked:
        image = next(parts_of(rest), "")
        after = rest
        if isinstance(image, Image):  # a template may have changed it
            tokens += vocabulary.image_tokens(image)
            after = rest.removeprefix(image.reference)
        if after:
            tokens += vocabulary.tokenize(after, add_special=False, parse_special=True)
    return tokens


def _tokenize_start(text: str, vocabulary: Vocabulary) -> list[int]:
    """Tokenise the start of a prompt, with one BOS token whether or not the template adds it."""
    bos = (
        "" if vocabulary.bos is None else vocabulary.text(vocabulary.bos).decode("utf-8", "replace")
    )
    has_bos = bool(bos) and text.startswith(bos)
    tokens = vocabulary.tokenize(text, add_special=not has_bos, parse_special=True)
    if vocabulary.adds_eos and tokens and not has_bos and tokens[-1] == vocabulary.eos:
        tokens.pop()
    return tokens
