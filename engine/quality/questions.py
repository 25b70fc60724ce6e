"""Needles in a long text, and small problems, as documents whose answers are known.

A greedy reply spells an answer exactly where each of its tokens is the likeliest one behind the
right ones before it, so an answer is judged by the rows of the text that holds it: no sampling, and
no chat template, so that base models are asked too.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from engine.backends.base import common_prefix
from engine.quality.texts import Answer, Document, Text, Tokenizer

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
HAYSTACKS = (1024, 2560)
"""Tokens of the texts that needles are hidden in, as far as the context holds them."""
SEED = 17
N_PROBLEMS = 12
N_SHOWN = 3
"""Problems of a sort that only show how it goes."""
N_STEPS = 3
THINGS = (
    "copper lantern", "blue ladder", "glass compass", "iron kettle", "paper boat",
    "silver whistle", "stone owl", "velvet glove", "wooden clock", "yellow umbrella",
)  # fmt: skip
NAMES = (
    "Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo", "Mia",
    "Nora", "Otto", "Pia",
)  # fmt: skip
FRUITS = ("apple", "cherry", "fig", "grape", "lemon", "mango", "melon", "olive", "peach", "plum")

Piece = tuple[str, str | None]
"""A stretch of a text, and what it is counted under where it is an answer."""


def questions(vocabulary: Tokenizer, texts: Sequence[Text], n_ctx: int) -> tuple[Document, ...]:
    """Needles and problems that fit the context; the same for the same texts.

    Args:
        vocabulary: The model's.
        texts: What needles are hidden in.
        n_ctx: Most tokens of a document.
    """
    found = [_problems(vocabulary, sort, write) for sort, write in _SORTS.items()]
    hay = "\n\n".join(text.text for text in texts)
    sizes = [size for size in HAYSTACKS if size < n_ctx] or [n_ctx]
    found += [_needles(vocabulary, hay, size, n_ctx) for size in sizes]
    return tuple(each for each in found if each.answers and len(each.tokens) <= n_ctx)


def _needles(vocabulary: Tokenizer, hay: str, size: int, n_ctx: int) -> Document:
    """A text of some `size` tokens with a sentence at each depth, and questions behind it.

    It is cut where it is more than `n_ctx`, as far as its questions leave something to cut.
    """
    draw = random.Random(SEED + size)
    things = draw.sample(THINGS, len(DEPTHS))
    numbers = [draw.randrange(1000, 10_000) for _ in DEPTHS]
    rows = [
        f"The number of the {thing} is {number}."
        for thing, number in zip(things, numbers, strict=True)
    ]
    tail: list[Piece] = [("\n\nNumbers that the text above names:\n", None)]
    for depth, thing, number in _shuffled(draw, zip(DEPTHS, things, numbers, strict=True)):
        tail += [(f"The number of the {thing} is", None), (f" {number}", f"{depth:.0%}")]
        tail.append((".\n", None))
    asked = len(
        vocabulary.tokenize(
            "".join(text for text, _ in tail) + " ".join(rows),
            add_special=False,
            parse_special=False,
        )
    )
    n_hay = size - asked
    while True:
        hidden = _with_sentences(_start(vocabulary, hay, n_hay), rows)
        found = _document(
            vocabulary, f"needles in {size} tokens", "needle", [(hidden, None), *tail]
        )
        n_over = len(found.tokens) - n_ctx
        if n_over <= 0 or n_hay <= 0:
            return found
        n_hay -= n_over


def _shuffled(
    draw: random.Random, listed: "Iterator[tuple[float, str, int]]"
) -> list[tuple[float, str, int]]:
    mixed = list(listed)
    draw.shuffle(mixed)
    return mixed


def _start(vocabulary: Tokenizer, hay: str, n_tokens: int) -> str:
    """The first `n_tokens` of a text, about."""
    tokens = vocabulary.tokenize(hay, add_special=False, parse_special=False)[: max(0, n_tokens)]
    return b"".join(map(vocabulary.piece, tokens)).decode("utf-8", "ignore")


def _with_sentences(text: str, sentences: Sequence[str]) -> str:
    """Sentences between lines of a text, at `DEPTHS` of it."""
    ends = [at + 1 for at, letter in enumerate(text) if letter == "\n"] or [len(text)]
    parts, before = [], 0
    for depth, sentence in zip(DEPTHS, sentences, strict=True):
        at = min(ends, key=lambda end: abs(end - depth * len(text)))
        parts += [text[before:at], sentence, "\n"]
        before = at
    return "".join([*parts, text[before:]])


def _problems(
    vocabulary: Tokenizer, sort: str, write: Callable[[random.Random], list[Piece]]
) -> Document:
    draw = random.Random(f"{SEED} {sort}")
    pieces: list[Piece] = []
    for number in range(N_PROBLEMS):
        is_shown = number < N_SHOWN
        pieces += [(text, None if is_shown or not name else sort) for text, name in write(draw)]
        pieces.append(("\n", None))
    return _document(vocabulary, sort, "reasoning", pieces)


def _running_total(draw: random.Random) -> list[Piece]:
    total = draw.randrange(5, 40)
    pieces: list[Piece] = [(f"Start with {total}.", None)]
    for _ in range(N_STEPS):
        by = draw.randrange(2, 20)
        is_more = by >= total or draw.random() < 0.6
        total += by if is_more else -by
        pieces += [(f" {'Add' if is_more else 'Take away'} {by}:", None), (f" {total}", "step")]
        pieces.append((".", None))
    return pieces


def _variables(draw: random.Random) -> list[Piece]:
    names = draw.sample("abcdefghkmnpqrstuvwxyz", 4)
    values = {names[0]: draw.randrange(10, 100), names[1]: draw.randrange(10, 100)}
    lines = [f"{name} = {value}" for name, value in values.items()]
    for name in names[2:]:
        source = draw.choice(list(values))
        values[name] = values[source]
        lines.append(f"{name} = {source}")
    asked = draw.choice(names[2:])
    return [(f"{'; '.join(lines)}; so {asked} is", None), (f" {values[asked]}", "value")]


def _order(draw: random.Random) -> list[Piece]:
    oldest_first = draw.sample(NAMES, 4)
    pairs = list(pairwise(oldest_first))
    draw.shuffle(pairs)
    said = " ".join(f"{first} is older than {second}." for first, second in pairs)
    name = oldest_first[0] if draw.random() < 0.5 else oldest_first[-1]
    word = "oldest" if name == oldest_first[0] else "youngest"
    return [(f"{said} So the {word} is", None), (f" {name}", "name"), (".", None)]


def _positions(draw: random.Random) -> list[Piece]:
    listed = draw.sample(FRUITS, 5)
    turned = listed[::-1]
    return [
        (f"List: {', '.join(listed)}. Backwards: {turned[0]},", None),
        (f" {', '.join(turned[1:])}", "list"),
        (".", None),
    ]


_SORTS: dict[str, Callable[[random.Random], list[Piece]]] = {
    "running totals": _running_total,
    "variables": _variables,
    "order": _order,
    "lists": _positions,
}


def _document(vocabulary: Tokenizer, name: str, kind: str, pieces: Sequence[Piece]) -> Document:
    """A document whose answers are found among the tokens of the whole text.

    A piece may share a token with its neighbours: it counts from the first token that the text
    before it does not have.
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
                answers.append(Answer(counted, start, stop))
        before += text
    first = max(0, min((answer.start for answer in answers), default=1) - 1)
    return Document(name, kind, tuple(tokens), first, tuple(answers))
