"""Documents to decode: texts of the user or of kvchat, split to fit the context."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.backends.base import Vocabulary
from engine.files import read_bytes, reason_of
from engine.quality.records import QualityError

OWN_TEXTS = Path(__file__).with_name("texts")
TEXT_BYTES = 1 << 26
"""Maximum size of one text: about 16 million tokens, which take days."""
MIN_TEXT_TOKENS = 32
"""Minimum tokens of a document; shorter texts and remainders are left out."""
MAX_LETTERS_PER_TOKEN = 64
"""Longest token except blanks and rules; limits how much text is tokenized for few tokens."""
BINARY_BYTES = 8192
"""Bytes at the start of a file that are searched for NUL, the sign of a binary file."""
CODE_ENDINGS = frozenset(
    {
        "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "html", "java", "js", "json", "jsx", "kt",
        "lua", "php", "pl", "py", "rb", "rs", "scala", "sh", "sql", "swift", "toml", "ts", "tsx",
        "vue", "xml", "yaml", "yml", "zig",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A text to score."""

    name: str
    """Display name without control characters."""
    kind: str
    """One of `records.TEXT_KINDS`."""
    text: str


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Tokens `start` to `stop` of a document; the answer is correct if all are top tokens."""

    name: str
    """Group that it is counted in, such as the depth of a needle."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Document:
    """A token sequence that is decoded starting with an empty cache."""

    name: str
    kind: str
    """One of `records.TEXT_KINDS`, or `needle` for questions."""
    tokens: tuple[int, ...]
    first: int = 0
    """First token whose row is scored; earlier ones are only prefilled."""
    answers: tuple[AnswerSpan, ...] = ()
    """Answers of a needle document, whose rows count in no other figure."""

    @property
    def n_rows(self) -> int:
        """Number of scored rows: the last token has no next token."""
        return max(0, len(self.tokens) - 1 - self.first)


def read_text_file(path: Path) -> Text:
    """Read a text file of the user; the file extension decides whether it is code.

    Raises:
        QualityError: it cannot be read, is empty, not UTF-8 text, or larger than `TEXT_BYTES`.
    """
    try:
        data = read_bytes(path, limit=TEXT_BYTES)
    except OSError as error:
        raise QualityError(f"{path} cannot be read: {reason_of(error)}") from error
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
    """The texts that are part of kvchat, in files named `KIND-NAME.txt`."""
    return tuple(
        Text(path.stem.partition("-")[2], path.stem.partition("-")[0], path.read_text("utf-8"))
        for path in sorted(OWN_TEXTS.glob("*.txt"))
    )


def clean_name(name: str) -> str:
    """Replace unprintable characters by `?` and shorten to 100 characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown[:100].strip() or "unnamed"


def documents_of(
    texts: Iterable[Text], vocabulary: Vocabulary, n_ctx: int, n_most: int | None = None
) -> tuple[Document, ...]:
    """Tokenize the texts as documents of at most `n_ctx` tokens, and `n_most` in total.

    Longer texts are split, duplicates dropped; control tokens in a text are plain text. A document
    starts with the BOS token if the model adds one.

    Raises:
        QualityError: no text is long enough.
    """
    found: list[Document] = []
    n_left = n_most
    once: dict[str, Text] = {}
    for text in texts:
        once.setdefault(text.text, text)
    for text in once.values():
        start = text.text if n_left is None else text.text[: n_left * MAX_LETTERS_PER_TOKEN]
        tokens = vocabulary.tokenize(start, add_special=False, parse_special=False)
        for document in _cut(text, tokens[:n_left], vocabulary, n_ctx):
            found.append(document)
            if n_left is not None:
                n_left -= len(document.tokens)
        if n_left is not None and n_left < MIN_TEXT_TOKENS:
            break
    if not found:
        raise QualityError(
            f"no text has {MIN_TEXT_TOKENS} tokens: choose longer texts, or leave out --text "
            "to use kvchat's own texts"
        )
    return tuple(found)


def _cut(
    text: Text, tokens: Sequence[int], vocabulary: Vocabulary, n_ctx: int
) -> Iterator[Document]:
    start = () if vocabulary.bos is None or not vocabulary.adds_bos else (vocabulary.bos,)
    size = n_ctx - len(start)
    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    parts = [part for part in parts if len(part) >= MIN_TEXT_TOKENS]
    for number, part in enumerate(parts, 1):
        name = text.name if len(parts) == 1 else f"{text.name} {number}/{len(parts)}"
        yield Document(name, text.kind, (*start, *part))


def digest_of(documents: Iterable[Document]) -> str:
    """Digest of the documents' tokens: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(f"{document.kind}\n{document.first}\n{len(document.tokens)}\n".encode())
        digest.update(np.asarray(document.tokens, dtype="<i4").tobytes())
    return digest.hexdigest()
