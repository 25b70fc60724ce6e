"""What a server says of a given text, token by token, and how two of them differ.

llama-server (0c1e570) tells of its own tokens only: a bias makes it say the text, one token a
request, and what it tells is from before the bias. vLLM (0.32.0) and SGLang (0.5.23) read a whole
prompt and tell of each of its tokens.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.backends.server.facts import Program, ServerFacts
from engine.backends.server.http import Http, ServerUnreachableError
from engine.errors import ServerError
from engine.quality.metrics import ROW, Rows

LIKELIEST: Mapping[Program, int] = {"llama-server": 256, "vLLM": 20, "SGLang": 256}
"""Tokens that each row tells of; 20 are what vLLM allows without `--max-logprobs`."""
FORCED = 1e4
"""Added to a token's logit, it is drawn whatever the others have."""
LEAST_MASS = 1e-9
"""Of the tokens that are not told: what rounding leaves of it is no probability."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ToldRow:
    """The distribution of a token that the text goes on with, as far as it is told."""

    token: int
    logprob: float
    likeliest: Mapping[int, float]
    """Logarithms by token, the likeliest first."""

    @property
    def top(self) -> int:
        """The likeliest token."""
        return next(iter(self.likeliest))


class ServedModel:
    """The tokens of texts and their likelihoods at one server.

    It is the tokenizer that documents are made with.
    """

    def __init__(self, http: Http, facts: ServerFacts) -> None:
        """Ask for the token that texts begin with.

        Raises:
            ServerError: it gives no likelihoods of a text that it did not write.
        """
        if facts.program not in LIKELIEST:
            raise ServerError(
                f"{http.name} is {facts.program}: it gives no likelihoods of a text that it did "
                "not write; llama-server, vLLM and SGLang do"
            )
        self._http, self._facts = http, facts
        self._pieces: dict[int, bytes] = {}
        start = self.tokenize("", add_special=True, parse_special=False)
        self.bos = start[0] if start else None
        self.adds_bos = bool(start)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text; vLLM and SGLang read control tokens out of it in any case.

        Raises:
            ServerError: the server does not tell.
        """
        if self._facts.program == "llama-server":
            body: dict[str, object] = {
                "content": text,
                "add_special": add_special,
                "parse_special": parse_special,
            }
        else:
            body = {"model": self._facts.model, "prompt": text, "add_special_tokens": add_special}
        tokens = self._post("/tokenize", body).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise ServerError(f"{self._http.name} made no tokens of a text")
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The letters of a token.

        Raises:
            ServerError: the server does not tell.
        """
        del special
        if token not in self._pieces:
            told = self._post("/detokenize", {"model": self._facts.model, "tokens": [token]})
            names = ("content", "prompt", "text")  # llama-server's, vLLM's and SGLang's
            text = next((told[name] for name in names if isinstance(told.get(name), str)), "")
            self._pieces[token] = str(text).encode()
        return self._pieces[token]

    def rows(self, tokens: Sequence[int], first: int) -> Iterator[ToldRow]:
        """The rows of a text behind its tokens from `first` on; the last token has none.

        Raises:
            ServerError: the server does not tell.
            ContextFullError: the text is longer than its context.
        """
        match self._facts.program:
            case "llama-server":
                for at in range(first + 1, len(tokens)):
                    yield self._forced(tokens[:at], tokens[at])
            case "vLLM":
                yield from self._prompt_logprobs(tokens, first)
            case _:
                yield from self._input_logprobs(tokens, first)

    # --- what each program is asked, and tells ---

    def _forced(self, before: Sequence[int], token: int) -> ToldRow:
        """One token of llama-server's; the text before it is in its cache, all but one token."""
        body = {
            "model": self._facts.model,
            "prompt": list(before),
            "n_predict": 1,
            "n_probs": LIKELIEST["llama-server"],
            "samplers": ["temperature"],
            "temperature": 0.0,
            "logit_bias": [[token, FORCED]],
            "cache_prompt": True,
            "response_fields": ["completion_probabilities"],
        }
        told = self._post("/completion", body).get("completion_probabilities")
        row = told[0] if isinstance(told, list) and told else None
        if not isinstance(row, dict) or row.get("id") != token:
            raise self._silent()
        return self._row(token, row.get("logprob"), _named(row.get("top_logprobs")))

    def _prompt_logprobs(self, tokens: Sequence[int], first: int) -> Iterator[ToldRow]:
        """Of each token of a prompt but the first, vLLM sends an object by ids."""
        body = {
            "model": self._facts.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": LIKELIEST["vLLM"],
        }
        choices = self._post("/v1/completions", body).get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        told = choice.get("prompt_logprobs") if isinstance(choice, dict) else None
        if not isinstance(told, list) or len(told) != len(tokens):
            raise self._silent()
        for token, row in zip(tokens[first + 1 :], told[first + 1 :], strict=True):
            found = _keyed(row)
            yield self._row(token, found.get(token), found)

    def _input_logprobs(self, tokens: Sequence[int], first: int) -> Iterator[ToldRow]:
        """Of each token of a prompt, SGLang sends lists of logarithm, id and text."""
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": LIKELIEST["SGLang"],
        }
        meta = self._post("/generate", body).get("meta_info")
        told = meta if isinstance(meta, dict) else {}
        own, top = told.get("input_token_logprobs"), told.get("input_top_logprobs")
        if not isinstance(own, list) or not isinstance(top, list) or len(own) != len(tokens):
            raise self._silent()
        told_of = zip(tokens, own, top, strict=False)
        for token, row, others in islice(told_of, first + 1, None):
            yield self._row(token, row[0] if isinstance(row, list) else None, _listed(others))

    def _row(self, token: int, logprob: object, likeliest: Mapping[int, float]) -> ToldRow:
        if not isinstance(logprob, int | float) or not likeliest:
            raise self._silent()
        ordered = sorted(likeliest.items(), key=lambda each: -each[1])
        return ToldRow(token, float(logprob), dict(ordered))

    def _silent(self) -> ServerError:
        return ServerError(
            f"{self._http.name} did not tell how likely the tokens of a text are: "
            f"{self._facts.program} {self._facts.version} may do that otherwise"
        )

    def _post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        return again(self._http, lambda: self._http.post_json(path, body, is_computed=True))


def again(http: Http, ask: Callable[[], Answer]) -> Answer:
    """The answer to a question that may be asked twice, once the server is there again.

    Raises:
        ServerError: it did not come back, or refuses.
    """
    for pause in http.limits.pauses_s:
        try:
            return ask()
        except ServerUnreachableError:
            time.sleep(pause)
    return ask()


def told_rows(rows: Sequence[ToldRow]) -> Rows:
    """What is kept of the reference's own rows."""
    kept = np.zeros(len(rows), dtype=ROW)
    kept["nll"] = [-row.logprob for row in rows]
    kept["same_top"] = True
    kept["is_right"] = [row.top == row.token for row in rows]
    return kept


def compared_rows(reference: Sequence[ToldRow], others: Sequence[ToldRow]) -> Rows:
    """How far another server's rows are from the reference's.

    KL is that of the tokens that both tell of and of all others as one, so at least so much is lost
    (Cover and Thomas 2006, theorem 2.7.1: what is told apart less differs less).
    """
    kept = told_rows(others)
    for row, ours, theirs in zip(kept, reference, others, strict=True):
        row["kl"] = _least_kl(ours, theirs)
        row["delta"] = ours.logprob - theirs.logprob
        row["same_top"] = ours.top == theirs.top
    return kept


def _least_kl(ours: ToldRow, theirs: ToldRow) -> float:
    known, found = dict(ours.likeliest), dict(theirs.likeliest)
    known[ours.token], found[theirs.token] = ours.logprob, theirs.logprob
    shared = [token for token in known if token in found]
    log_p: NDArray[np.float64] = np.array([known[token] for token in shared])
    log_q: NDArray[np.float64] = np.array([found[token] for token in shared])
    rest_p = max(1.0 - float(np.exp(log_p).sum()), LEAST_MASS)
    rest_q = max(1.0 - float(np.exp(log_q).sum()), LEAST_MASS)
    kl = float((np.exp(log_p) * (log_p - log_q)).sum()) + rest_p * float(np.log(rest_p / rest_q))
    return max(kl, 0.0)


def _named(told: object) -> Mapping[int, float]:
    rows = told if isinstance(told, list) else []
    return _numbers((row.get("id"), row.get("logprob")) for row in rows if isinstance(row, dict))


def _keyed(told: object) -> Mapping[int, float]:
    rows = told.items() if isinstance(told, dict) else ()
    return _numbers(
        (int(name), row.get("logprob"))
        for name, row in rows
        if str(name).isdecimal() and isinstance(row, dict)
    )


def _listed(told: object) -> Mapping[int, float]:
    rows = told if isinstance(told, list) else []
    return _numbers((row[1], row[0]) for row in rows if isinstance(row, list) and len(row) > 1)


def _numbers(pairs: Iterator[tuple[object, object]]) -> Mapping[int, float]:
    return {
        token: float(logprob)
        for token, logprob in pairs
        if isinstance(token, int) and isinstance(logprob, int | float) and np.isfinite(logprob)
    }
