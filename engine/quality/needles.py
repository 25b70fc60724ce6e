"""Needles in a long text: questions whose answers are known.

A greedy reply gives an answer exactly if each of its tokens is the top token after the correct
tokens before it. So the rows of a text that contains the answer score it, without sampling or chat
template, for base models too.
"""

import random
from collections.abc import Sequence

from engine.backends.base import Vocabulary, common_prefix
from engine.quality.texts import AnswerSpan, Document, Text

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
HAYSTACKS = (1024, 2560)
"""Lengths in tokens of the texts that hide needles, used if smaller than the context."""
SEED = 17
THINGS = (
    "copper lantern", "blue ladder", "glass compass", "iron kettle", "paper boat",
    "silver whistle", "stone owl", "velvet glove", "wooden clock", "yellow umbrella",
)  # fmt: skip
Segment = tuple[str, str | None]
"""A segment of a text, and the answer's name if it is one."""


def needles(vocabulary: Vocabulary, texts: Sequence[Text], n_ctx: int) -> tuple[Document, ...]:
    """Needle documents of at most `n_ctx` tokens; deterministic for the same texts."""
    hay = "\n\n".join(text.text for text in texts)
    sizes = [size for size in HAYSTACKS if size < n_ctx] or [n_ctx]
    found = [_needles(vocabulary, hay, size, n_ctx) for size in sizes]
    return tuple(each for each in found if each.answers and len(each.tokens) <= n_ctx)


def _needles(vocabulary: Vocabulary, hay: str, size: int, n_ctx: int) -> Document:
    """A text of about `size` tokens with a sentence at each depth, followed by the questions.

    The text is shortened, if possible, until the document fits `n_ctx`.
    """
    draw = random.Random(SEED + size)
    things = draw.sample(THINGS, len(DEPTHS))
    numbers = [draw.randrange(1000, 10_000) for _ in DEPTHS]
    rows = [
        f"The number of the {thing} is {number}."
        for thing, number in zip(things, numbers, strict=True)
    ]
    tail: list[Segment] = [("\n\nNumbers that the text above names:\n", None)]
    hidden = [*zip(DEPTHS, things, numbers, strict=True)]
    draw.shuffle(hidden)
    for depth, thing, number in hidden:
        tail += [(f"The number of the {thing} is", None), (f" {number}", f"{depth:.0%}")]
        tail.append((".\n", None))
    added = "".join(text for text, _ in tail) + " ".join(rows)
    n_hay = size - len(vocabulary.tokenize(added, add_special=False, parse_special=False))
    hay_tokens = vocabulary.tokenize(hay, add_special=False, parse_special=False)
    while True:
        start = b"".join(map(vocabulary.piece, hay_tokens[: max(0, n_hay)]))
        text = _with_sentences(start.decode("utf-8", "ignore"), rows)
        found = _document(vocabulary, f"needles in {size} tokens", [(text, None), *tail])
        n_over = len(found.tokens) - n_ctx
        if n_over <= 0 or n_hay <= 0:
            return found
        n_hay -= n_over


def _with_sentences(text: str, sentences: Sequence[str]) -> str:
    """Insert one sentence at each of `DEPTHS`, between lines of the text."""
    ends = [at + 1 for at, letter in enumerate(text) if letter == "\n"] or [len(text)]
    parts, before = [], 0
    for depth, sentence in zip(DEPTHS, sentences, strict=True):
        at = min(ends, key=lambda end: abs(end - depth * len(text)))
        parts += [text[before:at], sentence, "\n"]
        before = at
    return "".join([*parts, text[before:]])


def _document(vocabulary: Vocabulary, name: str, pieces: Sequence[Segment]) -> Document:
    """A document with the token spans of its answers.

    A segment may share a token with its neighbours: its span starts at the first token that differs
    from the tokens of the text before it.
    """

    def tokens_of(text: str) -> list[int]:
        return vocabulary.tokenize(text, add_special=True, parse_special=False)

    tokens = tokens_of("".join(text for text, _ in pieces))
    answers, before = [], ""
    for text, counted in pieces:
        if counted is not None:
            start = common_prefix(tokens_of(before), tokens)
            stop = common_prefix(tokens_of(before + text), tokens)
            if start < stop:
                answers.append(AnswerSpan(counted, start, stop))
        before += text
    first = max(0, min((answer.start for answer in answers), default=1) - 1)
    return Document(name, "needle", tuple(tokens), first, tuple(answers))
