"""The configurations that are compared: every way of drafting that a peer has, and its plain one.

Lengths beside the peers' defaults are short ones: on processors long drafts cost more than they
bring, and the comparison is with the best that a user of the peer could choose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from math import gcd
from pathlib import Path
from typing import Protocol

from speed_peers.records import Reply

PLAIN = "plain"
KVCHAT = "kvchat"
SERVER = "llama-server"
BINDING = "llama-cpp-python"
NODE = "node-llama-cpp"
TRANSFORMERS = "transformers"
BASE = f"{KVCHAT} {PLAIN}"
"""Key of the mode that everything is compared with."""
SLOW = (TRANSFORMERS,)
"""Peers that get fewer prompts: they compute in 32 bits and take seconds for a reply."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One configuration of one program."""

    peer: str
    name: str
    settings: dict[str, object] = field(default_factory=dict)
    """Options of the peer's side; for llama-server `arguments` of its command line."""
    needs_draft: bool = False

    @property
    def key(self) -> str:
        """Name in results and tables."""
        return f"{self.peer} {self.name}"

    @property
    def is_plain(self) -> bool:
        """Whether it drafts nothing."""
        return self.name == PLAIN


def _server(name: str, *arguments: object, needs_draft: bool = False) -> Mode:
    return Mode(SERVER, name, {"arguments": [str(each) for each in arguments]}, needs_draft)


def _ngram(kind: str) -> Mode:
    return _server(kind, "--spec-type", kind)


def _short(kind: str, n: int, m: int) -> Mode:
    """A mode that looks for `n` tokens and drafts `m`; ngram-simple drafts nothing where m < n."""
    option = f"--spec-{kind}-size-"
    return _server(f"{kind} {n}/{m}", "--spec-type", kind, f"{option}n", n, f"{option}m", m)


SERVER_MODES = (
    _server(PLAIN),
    _server("plain, no flash attention", "--flash-attn", "off"),
    _ngram("ngram-simple"),
    _short("ngram-simple", 4, 4),
    _ngram("ngram-map-k"),
    _short("ngram-map-k", 4, 4),
    _ngram("ngram-map-k4v"),
    _short("ngram-map-k4v", 4, 4),
    _ngram("ngram-mod"),
    _server(
        "ngram-mod 4/4", "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", 4,
        "--spec-ngram-mod-n-min", 1, "--spec-ngram-mod-n-max", 4,
    ),
    _ngram("ngram-cache"),
    _server("draft-simple", "--spec-type", "draft-simple", needs_draft=True),
)  # fmt: skip
BINDING_MODES = (
    Mode(BINDING, PLAIN),
    *(Mode(BINDING, f"look-up {n}", {"num_pred_tokens": n}) for n in (2, 4, 10)),
)
NODE_MODES = (
    Mode(NODE, PLAIN),
    Mode(NODE, "look-up", {"predictor": "lookup"}),
    Mode(NODE, "look-up 4/4", {"predictor": "lookup", "pattern_min": 4, "prediction_max": 4}),
    Mode(NODE, "draft", {"predictor": "draft"}, needs_draft=True),
)
TRANSFORMERS_MODES = (
    Mode(TRANSFORMERS, PLAIN),
    Mode(TRANSFORMERS, "look-up 10", {"prompt_lookup_num_tokens": 10}),
    Mode(TRANSFORMERS, "assisted", {"assisted": True}, needs_draft=True),
)
PEER_MODES = (*SERVER_MODES, *BINDING_MODES, *NODE_MODES, *TRANSFORMERS_MODES)


def kvchat_modes(policies: Sequence[str]) -> tuple[Mode, ...]:
    """kvchat's modes: plain, and each policy as `kvchat bench` writes it."""
    named = (
        Mode(KVCHAT, policy, {"policy": policy}, needs_draft=policy.startswith("draft"))
        for policy in dict.fromkeys(policies)
    )
    return (Mode(KVCHAT, PLAIN), *named)


def chosen_modes(
    policies: Sequence[str], *, only: Sequence[str], skip: Sequence[str], has_draft: bool
) -> tuple[Mode, ...]:
    """The modes whose keys match any pattern of `only` (all where it is empty) and none of
    `skip`; kvchat's plain one is always there, since everything is compared with it."""

    def is_chosen(mode: Mode) -> bool:
        if mode.needs_draft and not has_draft:
            return False
        if mode.peer == KVCHAT:
            return True
        wanted = not only or any(fnmatch(mode.key, pattern) for pattern in only)
        return wanted and not any(fnmatch(mode.key, pattern) for pattern in skip)

    return tuple(filter(is_chosen, (*kvchat_modes(policies), *PEER_MODES)))


@dataclass(frozen=True, slots=True)
class Setup:
    """What all sides have in common."""

    model: Path
    draft: Path | None
    n_ctx: int
    n_threads: int | None
    """None leaves it to each library."""
    end_tokens: tuple[int, ...]
    """Ids that end a turn, for peers that read no such thing from the file."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as a user's message and as the ids that kvchat makes of it."""

    set_name: str
    name: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; temperature 0 is greedy, nothing else cuts the distribution."""

    temperature: float
    max_tokens: int
    seed: int
    max_s: float | None = None
    """When libraries leave a reply, in seconds from its first token; other sides do not look."""


class Side(Protocol):
    """A program that answers; it stays up between questions."""

    versions: dict[str, str]

    def ask(self, mode: Mode, question: Question, sampling: Sampling) -> Reply:
        """A reply of one mode.

        Raises:
            PeerError: the program failed, with its message.
        """

    def close(self) -> None:
        """End its processes."""


def planned(
    modes: Sequence[Mode], questions: Sequence[Question], *, pair: int, slow_prompts: int
) -> Iterator[tuple[Mode, Question]]:
    """Every question to every mode, one question after the other.

    The modes begin at another place for each question and run backwards in every second pair, so
    that a machine that grows slower favours nobody. Slow peers get the first prompts of each set.
    """
    seen: dict[str, int] = {}
    for number, question in enumerate(questions):
        place = seen.get(question.set_name, 0)
        seen[question.set_name] = place + 1
        asked = [mode for mode in modes if place < slow_prompts or mode.peer not in SLOW]
        for mode in turned(asked, number + pair, backwards=bool(pair % 2)):
            yield mode, question


def turned(modes: Sequence[Mode], by: int, *, backwards: bool) -> list[Mode]:
    """The modes from another one on, in either direction.

    Steps of about the golden section of their number (coprime to it) spread the first places.
    """
    if not modes:
        return []
    start = by * stride(len(modes)) % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if backwards else order


def stride(n: int) -> int:
    """A step that visits all of `n` places before it comes back to the first."""
    step = max(1, round(0.618 * n))
    while gcd(step, n) != 1:
        step += 1
    return step
