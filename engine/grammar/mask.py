"""Grammar masks: the tokens that a grammar allows next, for sequences that grow and are cropped.

Draft and target request masks at the same positions, so the last masks are cached, and the matcher
is rolled back instead of restarted.
"""

from collections.abc import Sequence as Tokens
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Vocabulary, common_prefix
from engine.grammar.source import GrammarError, definition, grammar_of, refusal_of
from engine.requests import GenerationRequest, Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_MASKS = 40
"""Cached masks: the positions of two drafts and a few more."""
MAX_MATCHERS = 4
"""Compiled grammars to cache."""
ANCHOR = "\x02"
"""Prefix for tokenising: some tokenizers add a space at the start of a text."""

Mask = NDArray[np.bool_]


class GrammarMask:
    """The masks of one reply: a `TokenMask` for the sampler.

    Invariant: the matcher has consumed exactly `_consumed`, a prefix of the last requested reply;
    `_masks` has cached masks by the number of reply tokens before them. After an end token only
    end tokens are allowed.

    Args:
        matcher: In its initial state, used by this mask only.
        grammar: The matcher's grammar.
        n_before: Number of tokens before the reply.
        end_tokens: End tokens of the vocabulary.
        n_vocab: Number of tokens in the vocabulary.
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
        self._matcher, self._grammar = matcher, grammar
        self._n_before, self._n_vocab = n_before, n_vocab
        self._ends = frozenset(end_tokens)
        self._consumed: list[int] = []
        self._masks: dict[int, Mask] = {}
        self._only_ends = np.zeros(n_vocab, dtype=np.bool_)
        self._only_ends[list(end_tokens)] = True

    def __call__(self, history: Tokens[int], /) -> Mask:
        """`[n_vocab]` bool, true for each token allowed after `history`.

        Raises:
            GrammarError: a token of the reply is forbidden, or the grammar exceeds llguidance's
                limits.
        """
        reply = list(history[self._n_before :])
        known = self._known(reply)
        if known is not None:
            return known
        self._go_to(reply)
        mask = self._masks[len(reply)] = self._compute()
        if len(self._masks) > MAX_MASKS:
            del self._masks[next(iter(self._masks))]
        return mask

    def forced_tokens(self, history: Tokens[int]) -> list[int]:
        """Tokens of the text that must follow `history`; often none.

        Other tokens with the same text may be allowed too.
        """
        reply = list(history[self._n_before :])
        if self._has_ended(reply):
            return []
        self._go_to(reply)
        return self._matcher.compute_ff_tokens()

    def allows(self, history: Tokens[int], token: int) -> bool:
        """Whether a token may follow `history`; usually without computing a mask."""
        reply = list(history[self._n_before :])
        known = self._known(reply)
        if known is not None:
            return bool(known[token])
        self._go_to(reply)
        return self._matcher.validate_tokens([token]) == 1

    def is_satisfied(self, history: Tokens[int]) -> bool:
        """Whether the reply may end here."""
        reply = list(history[self._n_before :])
        if self._has_ended(reply):
            return True
        self._go_to(reply)
        return self._matcher.is_accepting()

    def _has_ended(self, reply: list[int]) -> bool:
        return not self._ends.isdisjoint(reply[-1:])

    def _known(self, reply: list[int]) -> Mask | None:
        """The mask after an end token, or the cached one; None if it must be computed."""
        if self._has_ended(reply):
            return self._only_ends
        is_prefix = self._consumed[: len(reply)] == reply
        return self._masks.get(len(reply)) if is_prefix else None

    def _go_to(self, reply: list[int]) -> None:
        """Roll the matcher back and forward until it has consumed exactly `reply`."""
        # They diverge near their ends.
        n_known = max(0, min(len(self._consumed), len(reply)) - MAX_MASKS)
        is_known = self._consumed[:n_known] == reply[:n_known]
        n_common = common_prefix(self._consumed, reply, known=n_known if is_known else 0)
        if n_back := len(self._consumed) - n_common:
            self._masks = {n: mask for n, mask in self._masks.items() if n <= n_common}
            del self._consumed[n_common:]
            if not self._matcher.rollback(n_back):
                raise self._failed()
        rest = reply[n_common:]
        n_consumed = self._matcher.try_consume_tokens(rest) if rest else 0
        self._consumed += rest[:n_consumed]
        if n_consumed == len(rest):
            return
        if self._matcher.is_error():
            raise self._failed()
        raise GrammarError(
            f"the reply so far does not match the grammar {self._grammar.name} from token "
            f"{len(self._consumed) + 1} on: regenerate the reply, or remove the grammar"
        )

    def _compute(self) -> Mask:
        packed = None if self._matcher.is_error() else self._matcher.compute_bitmask()
        if packed is None or self._matcher.is_error():
            raise self._failed()
        bits = np.frombuffer(packed, dtype=np.uint8)
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def _failed(self) -> GrammarError:
        return refusal_of(self._grammar, self._matcher.get_error())


class TokenBytes:
    """The bytes of every token, with the attributes that llguidance's TokenizerWrapper needs.

    Control tokens are listed, so that no grammar matches them as text.
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
        """Tokenise a text that does not start the prompt."""
        string = text if isinstance(text, str) else text.decode("utf-8", "replace")
        tokens, n_anchor = self._tokenize(ANCHOR + string), len(self._anchor)
        has_anchor = tokens[:n_anchor] == self._anchor
        return tokens[n_anchor:] if has_anchor else self._tokenize(string)

    def _tokenize(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


class Grammars:
    """Creates the masks of replies for one vocabulary, and caches compiled grammars."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiled: dict[Grammar, LLMatcher] = {}

    def mask(self, grammar: Grammar, *, n_before: int) -> GrammarMask:
        """The mask of a reply that starts after `n_before` tokens.

        Raises:
            GrammarError: the grammar is invalid, or the vocabulary has no end token.
        """
        if not self._tokens.end_tokens:
            raise GrammarError(
                "this model has no end token, so a reply with a grammar cannot end: use "
                "another model"
            )
        return GrammarMask(
            self._matcher(grammar),
            grammar,
            n_before=n_before,
            end_tokens=self._tokens.end_tokens,
            n_vocab=len(self._tokens.tokens),
        )

    def mask_of(self, request: GenerationRequest, tokens: Tokens[int]) -> GrammarMask | None:
        """The mask of a request's reply; None if it has no grammar.

        `tokens` are its prompt and the start of a continued reply.

        Raises:
            GrammarError: the grammar is invalid, or the start of the reply does not match it.
        """
        grammar = request.grammar or grammar_of(request.sampling)
        if grammar is None:
            return None
        mask = self.mask(grammar, n_before=len(tokens) - len(request.continues))
        mask(tokens)
        return mask

    def _matcher(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher

        compiled = self._compiled.pop(grammar, None)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer, definition(grammar), log_level=0)
            if compiled.is_error():
                raise refusal_of(grammar, compiled.get_error())
        self._compiled[grammar] = compiled
        if len(self._compiled) > MAX_MATCHERS:
            del self._compiled[next(iter(self._compiled))]
        return compiled.deep_copy()

    @cached_property
    def _tokens(self) -> TokenBytes:
        return TokenBytes(self._vocabulary)

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        """Llguidance's form of the vocabulary; takes about a second for a large one."""
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = self._tokens
        return LLTokenizer(
            TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=tokens.end_tokens
        )
