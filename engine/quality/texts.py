"""What is decoded: texts of the user or of kvchat, cut to the context, and questions."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.backends.base import Vocabulary
from engine.files import read_bytes
from engine.quality.records import QualityError

OWN_TEXTS = Path(__file__).with_name("texts")
TEXT_BYTES = 1 << 26
"""Most bytes of one text: some 16 million tokens, which take days."""
MIN_OF_A_TEXT = 32
"""Tokens below which the end of a text, or a text, is left out."""
LETTERS_OF_A_TOKEN = 64
"""No tokens but blanks and rules are longer: what lies behind is not read where tokens are few."""
BINARY_BYTES = 8192
"""Of a file's start, in which a zero byte tells that it is no text."""
CODE_ENDINGS = frozenset(
    {
        "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "html", "java", "js", "json", "jsx", "kt",
        "lua", "php", "pl", "py", "rb", "rs", "scala", "sh", "sql", "swift", "toml", "ts", "tsx",
        "vue", "xml", "yaml", "yml", "zig",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A text that was given."""

    name: str
    """Without control characters: it is shown."""
    kind: str
    """One of `records.TEXT_KINDS`."""
    text: str


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """The tokens `start` to `stop` of a document, which are right where all are likeliest."""

    name: str
    """What it is counted under, such as the depth of a needle."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Document:
    """A line of tokens that is decoded from an empty cache on."""

    name: str
    kind: str
    """One of `records.TEXT_KINDS`; of a question `needle`."""
    tokens: tuple[int, ...]
    first: int = 0
    """First token whose row is scored; those before are only read."""
    answers: tuple[AnswerSpan, ...] = ()
    """Of a question; its rows count in no other figure."""

    @property
    def n_rows(self) -> int:
        """Rows that are scored: the last token has no next one."""
        return max(0, len(self.tokens) - 1 - self.first)


def read_text_file(path: Path) -> Text:
    """A text of the user; code is told by the ending of its name.

    Raises:
        QualityError: it cannot be read, is empty, no text, or larger than `TEXT_BYTES`.
    """
    try:
        data = read_bytes(path, limit=TEXT_BYTES)
    except OSError as error:
        raise QualityError(f"{path} cannot be read: {error.strerror or error}") from error
    if b"\0" in data[:BINARY_BYTES]:
        raise QualityError(
            f"{path} is not text, because it contains NUL bytes: choose a UTF-8 text file"
        )
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise QualityError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it to UTF-8 first"
        ) from error
    if not text.strip():
        raise QualityError(f"{path} is empty: choose a file with text")
    kind = "code" if path.suffix[1:].lower() in CODE_ENDINGS else "document"
    return Text(clean_name(path.name), kind, text)


def own_texts() -> tuple[Text, ...]:
    """The texts that travel with kvchat: `KIND-NAME.txt`."""
    return tuple(
        Text(path.stem.partition("-")[2], path.stem.partition("-")[0], path.read_text("utf-8"))
        for path in sorted(OWN_TEXTS.glob("*.txt"))
    )


def clean_name(name: str) -> str:
    """A name on one line, without what moves a cursor, and not too long to be shown."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown[:100].strip() or "unnamed"


def documents_of(
    texts: Iterable[Text], vocabulary: Vocabulary, n_ctx: int, n_most: int | None = None
) -> tuple[Document, ...]:
    """The texts as tokens, each from the model's first token on.

    What is longer than the context goes on as a document of its own, and what is there twice is
    read once. Control tokens that a text spells stay letters.

    Args:
        texts: What to score.
        vocabulary: The model's.
        n_ctx: Most tokens of a document.
        n_most: Tokens after which the rest is left out; None takes all.

    Raises:
        QualityError: no text is long enough.
    """
    found: list[Document] = []
    n_left = n_most
    once: dict[str, Text] = {}
    for text in texts:
        once.setdefault(text.text, text)
    for text in once.values():
        start = text.text if n_left is None else text.text[: n_left * LETTERS_OF_A_TOKEN]
        tokens = vocabulary.tokenize(start, add_special=False, parse_special=False)
        for document in _cut(text, tokens[:n_left], vocabulary, n_ctx):
            found.append(document)
            if n_left is not None:
                n_left -= len(document.tokens)
        if n_left is not None and n_left < MIN_OF_A_TEXT:
            break
    if not found:
        raise QualityError(
            f"no text has {MIN_OF_A_TEXT} tokens: choose longer texts, or leave out --text "
            "to use kvchat's own texts"
        )
    return tuple(found)


def _cut(
    text: Text, tokens: Sequence[int], vocabulary: Vocabulary, n_ctx: int
) -> Iterator[Document]:
    start = () if vocabulary.bos is None or not vocabulary.adds_bos else (vocabulary.bos,)
    size = n_ctx - len(start)
    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    kept = [part for part in parts if len(part) >= MIN_OF_A_TEXT]
    for number, part in enumerate(kept, 1):
        name = text.name if len(kept) == 1 else f"{text.name} {number}/{len(kept)}"
        yield Document(name, text.kind, (*start, *part))


def digest_of(documents: Iterable[Document]) -> str:
    """What tells these tokens from all others: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(f"{document.kind}\n{document.first}\n{len(document.tokens)}\n".encode())
        digest.update(np.asarray(document.tokens, dtype="<i4").tobytes())
    return digest.hexdigest()
