"""Messages to the tokens of a prompt, with the ids that replies were generated as."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.backends.base import Vocabulary, common_prefix
from engine.errors import ContextFullError, TokenError
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message

FOR_THE_REPLY = 256
"""Tokens that a larger context is to have beyond the prompt."""

UNLIKE_QUESTIONS = ("a", "7", "- Z")
"""What they have in common at their start is not theirs."""

_MARK = "\ue0f0{}\ue0f1"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt; `note` says why ids of a message were not used again."""

    tokens: tuple[int, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of the rendered text, and the ids it is known to be."""

    text: str
    token_ids: tuple[int, ...] = ()


def asked_prompt(
    request: GenerationRequest,
    template: ChatTemplate,
    vocabulary: Vocabulary,
    *,
    n_ctx: int,
    n_ctx_train: int | None = None,
) -> Prompt:
    """The prompt of a request, with the reply that it goes on behind.

    Args:
        request: what is asked.
        template: of the model.
        vocabulary: of the model.
        n_ctx: tokens that the context holds.
        n_ctx_train: the most that the model was trained on, beyond which nobody is sent; None where
            it is not known.

    Raises:
        ContextFullError: it is empty, or has more than `n_ctx` tokens.
        TemplateError: from the template.
        TokenError: a token that was given is none of the vocabulary.
    """
    if request.prompt_tokens is not None:
        prompt = Prompt(checked_tokens(request.prompt_tokens, vocabulary))
    elif request.reads_only:
        prompt = lasting_prompt(request.messages, template, vocabulary)
    elif request.raw_prompt is not None:
        prompt = raw_prompt(request.raw_prompt, vocabulary)
    else:
        prompt = chat_prompt(request.messages, template, vocabulary)
    prompt = replace(prompt, tokens=(*prompt.tokens, *request.continues))
    n_prompt = len(prompt.tokens)
    if n_prompt == 0:
        raise ContextFullError("the prompt is empty: write something to answer")
    if n_prompt > n_ctx:
        raise ContextFullError(_too_long(n_prompt, n_ctx, n_ctx_train))
    return prompt


def _too_long(n_prompt: int, n_ctx: int, n_ctx_train: int | None) -> str:
    fact = f"the prompt has {n_prompt:,} tokens but the context has {n_ctx:,}"
    if n_ctx_train is None or n_prompt + FOR_THE_REPLY <= n_ctx_train:
        return (
            f"{fact}: raise the context to {n_prompt + FOR_THE_REPLY:,} or more, or drop "
            f"{n_prompt - n_ctx:,} tokens of the prompt or the chat"
        )
    if n_ctx < n_ctx_train:
        return (
            f"{fact}: raise the context to the {n_ctx_train:,} that the model was trained on, and "
            f"drop {n_prompt + FOR_THE_REPLY - n_ctx_train:,} tokens of the prompt or the chat"
        )
    return (
        f"{fact}, which is all that the model was trained on: drop {n_prompt - n_ctx:,} tokens of "
        "the prompt or the chat"
    )


def chat_prompt(
    messages: Sequence[Message], template: ChatTemplate, vocabulary: Vocabulary
) -> Prompt:
    """The prompt of a chat.

    A reply's text tokenised again need not give the ids that were generated, and from the first
    difference on the cache would be lost. So the rendered text is cut at the replies and each keeps
    its ids, as long as they still spell it (white space around it aside, which templates trim).
    Behind the first difference the text is tokenised.

    Raises:
        TemplateError: from the template.
    """
    rendered = template.render(messages)
    pieces = _pieces(messages, template, vocabulary, rendered)
    if pieces is None:
        note = "the chat template rewrites earlier replies: they were tokenised again"
        return Prompt(tuple(_tokenize_start(rendered, vocabulary)), note)
    return _join(pieces, vocabulary)


def lasting_prompt(
    messages: Sequence[Message], template: ChatTemplate, vocabulary: Vocabulary
) -> Prompt:
    """What the prompt of a chat begins with, whichever question comes next.

    Raises:
        TemplateError: from the template.
    """
    asked = [
        chat_prompt((*messages, Message("user", text)), template, vocabulary).tokens
        for text in UNLIKE_QUESTIONS
    ]
    length = min(common_prefix(asked[0], other) for other in asked[1:])
    return Prompt(asked[0][:length])


def raw_prompt(text: str, vocabulary: Vocabulary) -> Prompt:
    """The prompt of a text without a template."""
    return Prompt(tuple(vocabulary.tokenize(text, add_special=True, parse_special=True)))


def checked_tokens(
    tokens: Sequence[int], vocabulary: Vocabulary, what: str = "token"
) -> tuple[int, ...]:
    """The tokens themselves.

    Raises:
        TokenError: one of them is none of the vocabulary.
    """
    for place, token in enumerate(tokens, 1):
        if not 0 <= token < vocabulary.n_tokens:
            raise TokenError(
                f"{what} {token} (number {place:,}) is none of this model's, which has 0 to "
                f"{vocabulary.n_tokens - 1:,}"
            )
    return tuple(tokens)


def spelled(token_ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text that ids spell, with U+FFFD for what is no character."""
    return b"".join(vocabulary.piece(token) for token in token_ids).decode("utf-8", "replace")


def _pieces(
    messages: Sequence[Message],
    template: ChatTemplate,
    vocabulary: Vocabulary,
    rendered: str,
) -> list[_Piece] | None:
    """Cut the rendered text at the replies with ids, None where that cannot be done exactly."""
    known = [
        index
        for index, message in enumerate(messages)
        if message.token_ids and message.vocabulary_id == vocabulary.identifier
    ]
    if not known:
        return [_Piece(rendered)]
    marked = template.render(
        [
            replace(message, content=_MARK.format(index)) if index in known else message
            for index, message in enumerate(messages)
        ]
    )
    return _cut(marked, [messages[index] for index in known], known, rendered)


def _cut(
    marked: str, replies: Sequence[Message], indices: Sequence[int], rendered: str
) -> list[_Piece] | None:
    pieces: list[_Piece] = []
    at = 0
    for reply, index in zip(replies, indices, strict=True):
        before, found, marked = marked.partition(_MARK.format(index))
        if not found or not rendered.startswith(before, at):
            return None
        at += len(before)
        content = _content_at(reply.content, rendered, at)
        if content is None:
            return None
        pieces += [_Piece(before), _Piece(content, reply.token_ids or ())]
        at += len(content)
    if rendered[at:] != marked:
        return None
    return [*pieces, _Piece(marked)]


def _content_at(content: str, rendered: str, at: int) -> str | None:
    """The form in which a template wrote a reply, as it is or trimmed."""
    forms = (content, content.strip(), content.rstrip(), content.lstrip())
    return next((form for form in forms if rendered.startswith(form, at)), None)


def _join(pieces: Sequence[_Piece], vocabulary: Vocabulary) -> Prompt:
    tokens: list[int] = []
    pending = ""
    note = None
    for piece in pieces:
        kept, rest = _kept_ids(piece, vocabulary)
        if kept:
            tokens += _tokenize(pending, vocabulary, is_start=not tokens)
            tokens += kept
            pending = ""
        if piece.token_ids and rest:
            note = "a reply no longer reads as it was generated: its end was tokenised again"
        pending += rest
    tokens += _tokenize(pending, vocabulary, is_start=not tokens)
    return Prompt(tuple(tokens), note)


def _kept_ids(piece: _Piece, vocabulary: Vocabulary) -> tuple[tuple[int, ...], str]:
    """The leading ids that still spell the piece, and the text behind them."""
    if not piece.token_ids:
        return (), piece.text
    if spelled(piece.token_ids, vocabulary).strip() == piece.text.strip():
        return piece.token_ids, ""
    data = piece.text.encode()
    n_bytes = 0
    for n_kept, token in enumerate(piece.token_ids):
        part = vocabulary.piece(token)
        if data[n_bytes : n_bytes + len(part)] != part:
            return _at_character(piece.token_ids[:n_kept], data, n_bytes, vocabulary)
        n_bytes += len(part)
    return _at_character(piece.token_ids, data, n_bytes, vocabulary)


def _at_character(
    kept: tuple[int, ...], data: bytes, n_bytes: int, vocabulary: Vocabulary
) -> tuple[tuple[int, ...], str]:
    """Up trailing ids until what is left of the text starts at a character."""
    while kept and n_bytes < len(data) and data[n_bytes] & 0xC0 == 0x80:
        n_bytes -= len(vocabulary.piece(kept[-1]))
        kept = kept[:-1]
    return kept, data[n_bytes:].decode("utf-8", "replace")


def _tokenize(text: str, vocabulary: Vocabulary, *, is_start: bool) -> list[int]:
    if is_start:
        return _tokenize_start(text, vocabulary)
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


def _tokenize_start(text: str, vocabulary: Vocabulary) -> list[int]:
    """Tokenise the start of a prompt, with one BOS token whether the template wrote it or not."""
    bos = (
        "" if vocabulary.bos is None else vocabulary.text(vocabulary.bos).decode("utf-8", "replace")
    )
    has_bos = bool(bos) and text.startswith(bos)
    tokens = vocabulary.tokenize(text, add_special=not has_bos, parse_special=True)
    if vocabulary.adds_eos and tokens and not has_bos and tokens[-1] == vocabulary.eos:
        tokens.pop()
    return tokens
