"""What a benchmark says: faster or not, which policy to take, and the preset that takes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.bench.policies import Policy, parse_policy
from app.bench.summary import (
    PolicySummary,
    PromptRatio,
    SetSummary,
    bootstrap_interval,
    geometric_mean,
)
from app.config import SettingsError, Value, set_in_toml, write_atomically
from engine.configuration import PredictorName
from engine.errors import PresetFileError
from engine.files import SETTINGS_BYTES, read_text
from engine.parsing import parse_toml
from engine.presets.library import made_preset, named_preset, new_path
from engine.presets.preset import parse_preset

SLOW = 0.95
"""A prompt below it is listed by name."""
AUTO_MAY_LACK = 0.03
"""How far `auto` may be below the best one and still be recommended: that one was chosen on the
prompts it is measured on, and `auto` adapts to others."""
AUTO_MAY_COST = 0.02
WORTH = 1.02
"""Gain from which a setting that does not adapt is recommended."""
MAY_COST_A_SET = 0.98
NOISY = 0.1
"""Median difference of two plain runs from which the machine was not quiet enough to judge."""


@dataclass(frozen=True, slots=True)
class AutoAgainstBest:
    """`auto` beside the best fixed length of a set, which was chosen afterwards."""

    set_label: str
    auto: str
    best_fixed: str | None
    ratio: float | None
    """Geometric mean over the prompts that both have, of `auto` over the best; None without one."""
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class SlowPrompt:
    """A prompt on which `auto` lost."""

    set_label: str
    policy: str
    prompt: PromptRatio


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A policy, or None for none at all, and why."""

    policy: Policy | None
    reason: str
    is_open: bool = False
    """Whether the measurement leaves it open, even whether none is best."""

    @property
    def name(self) -> str:
        """What to set, in words."""
        if self.is_open:
            return "nothing yet"
        return "no speculation" if self.policy is None else self.policy.name


def best_fixed(summary: SetSummary) -> PolicySummary | None:
    """The fixed length with the largest mean on a set, None if none drafted anything."""
    fixed = (each for each in summary.policies if parse_policy(each.policy).is_fixed)
    return _best(each for each in fixed if each.has_drafts)


def auto_against_best(summary: SetSummary) -> tuple[AutoAgainstBest, ...]:
    """Every automatic policy of a set beside the best fixed one."""
    best = best_fixed(summary)
    return tuple(
        _against(summary, auto, best)
        for auto in summary.policies
        if parse_policy(auto.policy).is_auto and auto.has_drafts
    )


def overall(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean over sets, None where one of them has no number."""
    known = list(ratios)
    found = [ratio for ratio in known if ratio is not None]
    return geometric_mean(found) if len(found) == len(known) else None


def timed(summaries: Iterable[SetSummary]) -> list[SetSummary]:
    """The sets but those in which every reply ended in a loop or was too short to time."""
    return [
        one for one in summaries if not one.n_prompts or any(each.counted for each in one.policies)
    ]


def overall_of(summaries: Sequence[SetSummary], policy: str) -> float | None:
    """The geometric mean of a policy over the sets and temperatures with a prompt that counts."""
    found = [summary.find(policy) for summary in timed(summaries)]
    return overall(None if each is None else each.mean for each in found)


def slow_prompts(summaries: Sequence[SetSummary]) -> tuple[SlowPrompt, ...]:
    """The prompts on which an automatic policy is slower than `SLOW` of plain decoding.

    Not those on which it drafted nothing: they were decoded plainly.
    """
    return tuple(
        SlowPrompt(summary.label, policy.policy, prompt)
        for summary in summaries
        for policy in summary.policies
        if parse_policy(policy.policy).is_auto
        for prompt in policy.ratios
        if prompt.ratio < SLOW and prompt.n_verified
    )


def noise_warning(summaries: Sequence[SetSummary]) -> str | None:
    """Why the numbers are not to be trusted, None where the machine was quiet."""
    spreads = [each.plain_spread for each in summaries if each.n_prompts]
    known = [spread for spread in spreads if spread is not None]
    if len(known) < len(spreads):
        return (
            "A set has no prompt with two adjacent runs of plain decoding, so the noise of this "
            "machine is unknown: measure with more pairs."
        )
    worst = max(known, default=0.0)
    if worst < NOISY:
        return None
    return (
        f"Adjacent runs of plain decoding differ by {worst:.0%}, so other programs used this "
        "machine: measure again when it is idle, or with more pairs."
    )


def recommend(summaries: Sequence[SetSummary], policies: Sequence[str]) -> Recommendation:
    """What to set on this machine for texts such as these; nothing on a noisy machine."""
    if (noise := noise_warning(summaries)) is not None:
        return Recommendation(None, f"{noise[0].lower()}{noise[1:-1]}", is_open=True)
    found = _recommended(timed(summaries), policies)
    if found.is_open or any(each.interval for one in summaries for each in one.policies):
        return found
    return replace(found, reason=f"{found.reason}; one prompt per set is little evidence")


def _recommended(summaries: Sequence[SetSummary], policies: Sequence[str]) -> Recommendation:
    """What to set.

    It judges by what drafts can have done (`PolicySummary.possible`), not by all that was measured.
    `auto` where it costs nearly nothing and is nearly as good as the best of those that lose on no
    set; else that one, where it gains; else no speculation.
    """
    scores = {name: score for name in policies if (score := _score_of(summaries, name)) is not None}
    if not scores:
        return Recommendation(
            None,
            "no prompt can be used: each failed, ended in a loop or was too short",
            is_open=True,
        )
    if not any(each.has_drafts for summary in summaries for each in summary.policies):
        return Recommendation(
            None,
            "no policy drafted anything on these prompts, so any difference is noise",
            is_open=True,
        )
    steady = {name: scores[name] for name in scores if _never_costs(summaries, name)}
    best = max(steady or scores, key=lambda name: scores[name])
    autos = [name for name in scores if parse_policy(name).is_auto]
    auto = max(autos, key=lambda name: scores[name], default=None)
    if auto is not None and _suffices(scores[auto], max(steady.values(), default=1.0)):
        return Recommendation(parse_policy(auto), _auto_reason(auto, best, scores))
    if best in steady and steady[best] >= WORTH:
        return Recommendation(
            parse_policy(best),
            f"{best} decodes {scores[best]:.2f} times as fast as plain decoding over all sets, "
            f"and at least {MAY_COST_A_SET:.2f} times as fast on every set",
        )
    top = max(scores, key=lambda name: scores[name])
    return Recommendation(
        None,
        f"no setting gains {WORTH - 1:.0%} over all sets without a loss on one set: the best, "
        f"{top}, "
        f"reaches {scores[top]:.2f} of the speed of plain decoding",
    )


def _score_of(summaries: Sequence[SetSummary], policy: str) -> float | None:
    found = [summary.find(policy) for summary in summaries]
    return overall(None if each is None else each.possible for each in found)


def _suffices(auto: float, best: float) -> bool:
    return auto >= best * (1 - AUTO_MAY_LACK) and auto >= 1 - AUTO_MAY_COST


def _auto_reason(auto: str, best: str, scores: dict[str, float]) -> str:
    said = f"{auto} decodes {scores[auto]:.2f} times as fast as plain decoding over all sets"
    if auto == best:
        return f"{said}, more than any other setting, and adapts to other texts"
    return f"{said}; {best}, chosen in hindsight, reaches {scores[best]:.2f} but does not adapt"


def _never_costs(summaries: Sequence[SetSummary], policy: str) -> bool:
    means = [each.possible for summary in summaries if (each := summary.find(policy))]
    return all(mean is not None and mean >= MAY_COST_A_SET for mean in means)


def _best(policies: Iterable[PolicySummary]) -> PolicySummary | None:
    scored = [(each.mean, each) for each in policies if each.mean is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _against(
    summary: SetSummary, auto: PolicySummary, best: PolicySummary | None
) -> AutoAgainstBest:
    others = {} if best is None else {each.prompt: each.ratio for each in best.counted}
    ratios = [each.ratio / others[each.prompt] for each in auto.counted if each.prompt in others]
    return AutoAgainstBest(
        set_label=summary.label,
        auto=auto.policy,
        best_fixed=None if best is None else best.policy,
        ratio=geometric_mean(ratios),
        interval=bootstrap_interval(ratios),
    )


def find_target(name: str, user_dir: Path) -> Path:
    """The file that a preset's name or path means; it need not be there yet.

    Raises:
        PresetFileError: it is no name, or a preset that comes with kvchat, which stays as it is.
    """
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        return path
    entry = named_preset(name, user_dir, or_file=True)
    if entry is None:
        return new_path(made_preset({"name": name}).name, user_dir)
    if entry.is_builtin:
        raise PresetFileError(
            f"the preset {entry.name!r} is built in and cannot be changed: use another name"
        )
    return entry.path


def write_policy(
    path: Path, policy: Policy | None, *, model: Path, draft: Path | None, name: str
) -> None:
    """Put a policy into `[speculation]`; comments, order and all other keys stay.

    A preset that is not there is made, for this model. Where a draft model takes part it is named
    under `[draft]`, unless the preset names one already.

    Args:
        path: The preset's file.
        policy: What to set; None switches speculation off.
        model: The model that was measured.
        draft: The draft model that was loaded, if any.
        name: Name of a preset that is made.

    Raises:
        PresetFileError: the file is not a valid preset, or would not be one, or cannot be written.
    """
    drafts = policy is not None and policy.uses_draft_model
    try:
        text = _rules(path, name, model)
        if draft is not None and drafts and "draft" not in parse_toml(text):
            text = set_in_toml(text, "draft", {"model": str(draft)})
        text = set_in_toml(text, "speculation", _keys(policy))
        parse_preset(text, path.name)
        write_atomically(path, text)
    except (OSError, ValueError) as error:
        raise PresetFileError(f"{path} cannot be read as a preset: {error}") from error
    except SettingsError as error:
        raise PresetFileError(str(error)) from error


def _keys(policy: Policy | None) -> dict[str, Value | None]:
    if policy is None:
        return {"predictor": PredictorName.OFF.value}
    keys: dict[str, Value | None] = {
        "predictor": policy.predictor.value,
        "controller": policy.controller.value,
    }
    if policy.n_draft is not None:
        keys["n_draft"] = policy.n_draft
    return keys


def _rules(path: Path, name: str, model: Path) -> str:
    """The text of a preset; of one that is not there, what it begins with."""
    import tomlkit  # for presets that are written

    if not path.exists():
        return tomlkit.dumps({"name": name, "model": str(model)})
    text = read_text(path, limit=SETTINGS_BYTES)
    parse_preset(text, path.name)
    return text
