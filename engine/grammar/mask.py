"""Which tokens a grammar lets follow, asked for lines that grow and are cut back.

Draft and target ask for the same places one after the other, so the masks of the last places are
kept, and the matcher is rolled back instead of starting anew.
"""

from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Vocabulary, common_prefix
from engine.grammar.source import GrammarError, definition, grammar_of, refusal_of
from engine.requests import GenerationRequest, Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT_MASKS = 40
"""Places whose masks are kept: two drafts and what lies around them."""
KEPT_MATCHERS = 4
"""Grammars that stay compiled."""
ANCHOR = "\x02"
"""Goes before a text that is tokenised: some tokenizers put a blank at the start of any text."""

Mask = NDArray[np.bool_]


class GrammarMask:
    """The masks of one reply: a `TokenMask` for the sampler.

    Invariant: the matcher has taken exactly `_taken`, which began the reply of the line that was
    asked for last; `_masks` has masks of places along it by the number of tokens before them.
    An end token ends what the grammar says: only end tokens follow it.

    Args:
        matcher: At its start, for this mask alone.
        grammar: What it was made of.
        n_before: Tokens of the line before the reply.
        end_tokens: Of the vocabulary.
        n_vocab: Tokens of the vocabulary.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        grammar: Grammar,
        *,
        n_before: int,
        end_tokens: Tokens[int],
        n_vocab: int,
    ) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._n_before = n_before
        self._ends = frozenset(end_tokens)
        self._n_vocab = n_vocab
        self._taken: list[int] = []
        self._masks: dict[int, Mask] = {}
        self._only_ends = np.zeros(n_vocab, dtype=np.bool_)
        self._only_ends[list(end_tokens)] = True

    def __call__(self, history: Tokens[int], /) -> Mask:
        """`[n_vocab]` bool, true for each token that may stand behind `history`.

        Raises:
            GrammarError: a token of the reply is forbidden, or the grammar is too large for its
                limits.
        """
        reply = self._reply(history)
        if self._ends.intersection(reply[-1:]):
            return self._only_ends
        known = self._known(reply)
        if known is not None:
            return known
        self._go_to(reply)
        mask = self._compute()
        self._masks[len(reply)] = mask
        if len(self._masks) > KEPT_MASKS:
            del self._masks[next(iter(self._masks))]
        return mask

    def forced_tokens(self, history: Tokens[int]) -> list[int]:
        """The tokens of the text that has to follow, whatever is drawn; often there are none.

        Another spelling of that text by tokens may be allowed too, so they are guesses.
        """
        reply = self._reply(history)
        if self._ends.intersection(reply[-1:]):
            return []
        self._go_to(reply)
        return self._matcher.compute_ff_tokens()

    def allows(self, history: Tokens[int], token: int) -> bool:
        """Whether a token may follow `history`; most often without making a mask."""
        reply = self._reply(history)
        if self._ends.intersection(reply[-1:]):
            return token in self._ends
        known = self._known(reply)
        if known is not None:
            return bool(known[token])
        self._go_to(reply)
        return self._matcher.validate_tokens([token]) == 1

    def is_satisfied(self, history: Tokens[int]) -> bool:
        """Whether the reply may end here."""
        reply = self._reply(history)
        if self._ends.intersection(reply[-1:]):
            return True
        self._go_to(reply)
        return self._matcher.is_accepting()

    def _known(self, reply: list[int]) -> Mask | None:
        """The mask behind a reply that is the start of what was taken, if it is kept."""
        is_on_the_way = self._taken[: len(reply)] == reply
        return self._masks.get(len(reply)) if is_on_the_way else None

    def _reply(self, history: Tokens[int]) -> list[int]:
        return list(history[self._n_before :])

    def _go_to(self, reply: list[int]) -> None:
        """Have the matcher take exactly these tokens."""
        n_common = self._n_common(reply)
        n_back = len(self._taken) - n_common
        if n_back:
            self._masks = {place: self._masks[place] for place in self._masks if place <= n_common}
            del self._taken[n_common:]
            if not self._matcher.rollback(n_back):
                raise self._failed()
        rest = reply[n_common:]
        n_taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._taken += rest[:n_taken]
        if n_taken < len(rest):
            if self._matcher.is_error():
                raise self._failed()
            raise GrammarError(
                f"the reply so far does not match the grammar {self._grammar.name} from "
                f"token {len(self._taken) + 1} on: regenerate the reply, or remove the "
                "grammar"
            )

    def _n_common(self, reply: list[int]) -> int:
        """How much of what was taken the reply begins with; they part near their ends."""
        n_least = min(len(self._taken), len(reply))
        n_known = max(0, n_least - KEPT_MASKS)
        is_known = self._taken[:n_known] == reply[:n_known]
        return common_prefix(self._taken, reply, known=n_known if is_known else 0)

    def _compute(self) -> Mask:
        """The mask behind what was taken, its bits spread out."""
        if self._matcher.is_error():
            raise self._failed()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._failed()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def _failed(self) -> GrammarError:
        return refusal_of(self._grammar, self._matcher.get_error())


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


class Grammars:
    """Makes the masks of replies for one vocabulary; the last grammars stay compiled."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: TokenBytes | None = None
        self._tokenizer: LLTokenizer | None = None
        self._compiled: dict[Grammar, LLMatcher] = {}

    def mask(self, grammar: Grammar, *, n_before: int) -> GrammarMask:
        """The mask of a reply that begins behind `n_before` tokens of its line.

        Raises:
            GrammarError: the grammar is not valid, or the vocabulary has no token that ends a text.
        """
        tokens = self._all_tokens()
        matcher = self._matcher(grammar, tokens)
        return GrammarMask(
            matcher,
            grammar,
            n_before=n_before,
            end_tokens=tokens.end_tokens,
            n_vocab=len(tokens.tokens),
        )

    def mask_of(self, request: GenerationRequest, tokens: Tokens[int]) -> GrammarMask | None:
        """The mask of a request's reply, None where it has no grammar.

        Args:
            request: What is asked.
            tokens: Its prompt, and the start of the reply where one is continued.

        Raises:
            GrammarError: the grammar is not valid, or that start does not fit it.
        """
        grammar = request.grammar or grammar_of(request.sampling)
        if grammar is None:
            return None
        mask = self.mask(grammar, n_before=len(tokens) - len(request.continues))
        mask(tokens)
        return mask

    def _matcher(self, grammar: Grammar, tokens: TokenBytes) -> "LLMatcher":
        """A matcher at the start of a grammar."""
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = make_tokenizer(tokens)
        compiled = self._compiled.pop(grammar, None)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer, definition(grammar), log_level=0)
            if compiled.is_error():
                raise refusal_of(grammar, compiled.get_error())
        self._compiled[grammar] = compiled
        if len(self._compiled) > KEPT_MATCHERS:
            del self._compiled[next(iter(self._compiled))]
        return compiled.deep_copy()

    def _all_tokens(self) -> TokenBytes:
        if self._tokens is None:
            self._tokens = TokenBytes(self._vocabulary)
        if not self._tokens.end_tokens:
            raise GrammarError(
                "this model has no end token, so a reply with a grammar cannot end: use "
                "another model"
            )
        return self._tokens
