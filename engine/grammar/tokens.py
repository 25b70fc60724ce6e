"""A model's vocabulary as llguidance wants it, made once for each model that has a grammar."""

from typing import TYPE_CHECKING

from engine.backends.base import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLTokenizer

ANCHOR = "\x02"
"""Goes before a text that is tokenised: some tokenizers put a blank at the start of any text."""


class TokenBytes:
    """The bytes of every token, by the names that llguidance asks for.

    Control tokens are marked, so that no grammar takes them for the text that spells them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = range(vocabulary.n_tokens)
        shown = [vocabulary.piece(token) for token in tokens]
        self.tokens = [
            piece or vocabulary.piece(token, special=True)
            for token, piece in zip(tokens, shown, strict=True)
        ]
        self.special_token_ids = [
            token for token in tokens if not shown[token] and self.tokens[token]
        ]
        self.end_tokens = [token for token in tokens if vocabulary.is_end(token)]
        self.bos_token_id = vocabulary.bos
        self.eos_token_id = self.end_tokens[0] if self.end_tokens else -1
        self._vocabulary = vocabulary
        self._anchor = self._tokenize(ANCHOR)

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a text in the middle of a line."""
        spelled = text if isinstance(text, str) else text.decode("utf-8", "replace")
        tokens = self._tokenize(ANCHOR + spelled)
        if tokens[: len(self._anchor)] == self._anchor:
            return tokens[len(self._anchor) :]
        return self._tokenize(spelled)

    def _tokenize(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


def make_tokenizer(tokens: TokenBytes) -> "LLTokenizer":
    """The vocabulary in the form of llguidance; takes about a second for a large one."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(
        TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=tokens.end_tokens
    )
