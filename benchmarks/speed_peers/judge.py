"""Results of the runs: ratios of speeds prompt by prompt, and the verdict over sets. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.experiment.gain import median_interval
from engine.experiment.runner import ends_in_loop
from engine.speculation.stats import first_divergence
from speed_peers.catalogue import BASE, KVCHAT, PLAIN
from speed_peers.records import Reply, Run

MIN_STEPS = 8
"""Decoded tokens under which a reply is too short for a speed."""

Replies = dict[str, dict[int, Reply]]
"""Of one prompt: replies by configuration and pair."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration on one set."""

    configuration: str
    n_prompts: int
    to_kvchat_plain: float | None
    """Median over prompts of the speed over kvchat's plain one, median of pairs."""
    to_own_plain: float | None
    n_same: int
    """Replies with the very tokens of the peer's own plain decoding, of `n_replies`; for that one
    itself, with those of kvchat's plain decoding."""
    n_replies: int
    acceptance: float | None
    tokens_per_round: float | None
    tokens_per_second: float | None
    """Median of all replies; it hangs on the machine, the ratios less so."""
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """kvchat's automatic rule against the best peer on one set, chosen in hindsight."""

    set_name: str
    best: str
    best_to_plain: float
    auto_to_plain: float
    auto_to_best: float
    """Median over the prompts that both answered."""
    interval: tuple[float, float] | None
    """99 % interval of that median; None of one prompt."""
    n_prompts: int


def by_prompt(runs: Iterable[Run], set_name: str) -> dict[str, Replies]:
    """The replies of a set, prompt by prompt in the order of the file."""
    found: dict[str, Replies] = {}
    for run in runs:
        if run.set_name == set_name and run.reply is not None:
            replies = found.setdefault(run.prompt, {})
            replies.setdefault(run.configuration, {})[run.pair] = run.reply
    return found


def ratio(replies: Replies, one: str, other: str) -> float | None:
    """The speed of one configuration over another's on a prompt, the median of their pairs.

    None where a side has no reply, or one too short for a speed.
    """
    found = []
    for pair, reply in replies.get(one, {}).items():
        against = replies.get(other, {}).get(pair)
        if against is None or min(reply.n_steps, against.n_steps) < MIN_STEPS:
            continue
        fast, slow = reply.tokens_per_second, against.tokens_per_second
        if fast and slow:
            found.append(fast / slow)
    return statistics.median(found) if found else None


def ratios_of(prompts: Iterable[Replies], one: str, other: str) -> list[float]:
    """The ratios of the prompts that have one."""
    return [found for replies in prompts if (found := ratio(replies, one, other)) is not None]


def median_ratio(prompts: Iterable[Replies], one: str, other: str) -> tuple[float | None, int]:
    """The median of the ratios, and over how many prompts."""
    ratios = ratios_of(prompts, one, other)
    return statistics.median(ratios) if ratios else None, len(ratios)


def row_of(runs: Sequence[Run], set_name: str, configuration: str) -> Row:
    """The row of a configuration in the table of a set."""
    prompts = list(by_prompt(runs, set_name).values())
    own_plain = f"{configuration.split(' ', 1)[0]} {PLAIN}"
    to_plain, n_prompts = median_ratio(prompts, configuration, BASE)
    to_own, _ = median_ratio(prompts, configuration, own_plain)
    model_text = BASE if configuration == own_plain else own_plain
    pairs = [
        (reply, replies[model_text][pair])
        for replies in prompts
        for pair, reply in replies.get(configuration, {}).items()
        if pair in replies.get(model_text, {})
    ]
    own = [reply for replies in prompts for reply in replies.get(configuration, {}).values()]
    speeds = [speed for reply in own if (speed := reply.tokens_per_second) is not None]
    return Row(
        configuration,
        n_prompts,
        to_plain,
        None if configuration == own_plain else to_own,
        sum(first_divergence(plain.tokens, reply.tokens) is None for reply, plain in pairs),
        len(pairs),
        acceptance_of(own),
        tokens_per_round_of(own),
        statistics.median(speeds) if speeds else None,
        tuple(
            dict.fromkeys(
                run.error
                for run in runs
                if run.error and (run.set_name, run.configuration) == (set_name, configuration)
            )
        ),
    )


def acceptance_of(replies: Sequence[Reply]) -> float | None:
    """Accepted over verified tokens, None where none is known or none was drafted."""
    if any(reply.n_drafted is None or reply.n_accepted is None for reply in replies):
        return None
    drafted = sum(reply.n_drafted or 0 for reply in replies)
    return sum(reply.n_accepted or 0 for reply in replies) / drafted if drafted else None


def tokens_per_round_of(replies: Sequence[Reply]) -> float | None:
    """Decoded tokens per pass through the model, None where the passes are not known."""
    if not replies or any(reply.n_rounds is None for reply in replies):
        return None
    rounds = sum(reply.n_rounds or 0 for reply in replies)
    return sum(reply.n_steps for reply in replies) / rounds if rounds else None


def verdict_of(
    runs: Sequence[Run],
    set_name: str,
    configurations: Sequence[str],
    auto: str,
    *,
    without_loops: bool = False,
) -> Verdict | None:
    """The verdict on a set, None where one of the sides has no speed.

    The best peer is the one with the highest median over kvchat's plain speed, which puts
    peers that answered fewer prompts on the same scale.
    """
    prompts = list(by_prompt(runs, set_name).values())
    if without_loops:
        prompts = [replies for replies in prompts if not is_loop(replies)]
    best, best_ratio = None, 0.0
    for configuration in configurations:
        if configuration.startswith(f"{KVCHAT} "):
            continue
        found, _ = median_ratio(prompts, configuration, BASE)
        if found is not None and found > best_ratio:
            best, best_ratio = configuration, found
    auto_ratio, _ = median_ratio(prompts, auto, BASE)
    if best is None or auto_ratio is None:
        return None
    ratios = ratios_of(prompts, auto, best)
    if not ratios:
        return None
    to_best = statistics.median(ratios)
    interval = median_interval(ratios) if len(ratios) > 1 else None
    return Verdict(set_name, best, best_ratio, auto_ratio, to_best, interval, len(ratios))


def is_loop(replies: Replies) -> bool:
    """Whether kvchat's plain reply to a prompt ends in repeating itself."""
    return any(ends_in_loop(reply.tokens) for reply in replies.get(BASE, {}).values())


def n_loops(runs: Sequence[Run], set_name: str) -> int:
    """Count the prompts of a set whose plain reply ends in a loop."""
    return sum(map(is_loop, by_prompt(runs, set_name).values()))
