"""What programs without llama-server's flags leave behind, said in one way."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.configuration import Configuration, ControllerName, PredictorName, TensorOverride
from engine.model.ggml_types import TYPES_BY_NAME

_PLAIN = Configuration(Path("model.gguf"), 1)
_ANSWER_RULES = ("json_schema", "grammar", "stop_tokens", "thinking_budget")
"""Fields of the sampling that no file but llama-server's has."""


def left_behind(
    configuration: Configuration, program: str, consequences: Mapping[str, str]
) -> Iterator[str]:
    """Each field that is not as usual, with its value and what happens in the program.

    `consequences` has an entry for every field that the program has no setting for.
    """
    for name, consequence in consequences.items():
        value: object = getattr(configuration, name)
        if value != getattr(_PLAIN, name):
            yield f"{name} is {_shown(value)}: {program} has no setting for it, {consequence}"
    for name in _ANSWER_RULES:
        yield from no_answer_rule(configuration, program, name)


def no_answer_rule(
    configuration: Configuration,
    program: str,
    name: str,
    consequence: str = "takes it with each request, if at all",
) -> Iterator[str]:
    """That a rule for what a reply may be does not arrive, where there is one."""
    if value := getattr(configuration.sampling, name):
        yield f"{name} is {_shown(value)}: {program} {consequence}"


def least_type(wanted: str, offered: tuple[str, ...]) -> str:
    """The smallest offered KV type that keeps as many bits as the wanted one."""
    if wanted in offered:
        return wanted
    enough = [name for name in offered if _bits(name) >= _bits(wanted)]
    return min(enough, key=_bits) if enough else max(offered, key=_bits)


def one_type(
    configuration: Configuration, program: str, offered: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """The KV type for a program that has one for keys and values, and what that changes."""
    k, v = configuration.type_k, configuration.type_v
    kept = least_type(max(k, v, key=_bits), offered)
    if k == v == kept:
        return kept, ()
    change = "larger" if 2 * _bits(kept) > _bits(k) + _bits(v) else "smaller"
    if 2 * _bits(kept) == _bits(k) + _bits(v):
        change = "no larger"
    return kept, (
        f"type_k is {k} and type_v is {v}: {program} has one KV type for both, out of "
        f"{', '.join(offered)}; it gets {kept}, and the cache is {change} than planned",
    )


def no_draft(configuration: Configuration, program: str) -> Iterator[str]:
    """That a draft model does not arrive."""
    if configuration.draft is not None:
        yield (
            f"the draft model is {configuration.draft.model_path.name}: {program} takes none, and "
            "decodes without speculation"
        )


def idle_draft(configuration: Configuration, program: str) -> Iterator[str]:
    """That a draft model does not arrive where another predictor drafts."""
    speculation, draft = configuration.speculation, configuration.draft
    if draft is not None and speculation.predictor is not PredictorName.DRAFT:
        yield (
            f"the draft model {draft.model_path.name} stays behind: the predictor is "
            f"{speculation.predictor}, and {program} loads only what drafts"
        )


def no_scales(configuration: Configuration, program: str) -> Iterator[str]:
    """That adapters work as they were trained there."""
    scaled = [adapter.spelled for adapter in configuration.adapters if adapter.scale != 1.0]
    if scaled:
        yield f"the adapters have scales ({', '.join(scaled)}): {program} takes each at 1"


def no_lookup(configuration: Configuration, program: str) -> Iterator[str]:
    """That the look-up, or a predictor of a program's own, does not arrive."""
    speculation = configuration.speculation
    is_custom = speculation.predictor is PredictorName.CUSTOM
    if is_custom or speculation.drafts_from_text:
        yield (
            f"the predictor is {speculation.predictor}: {program} has none, and "
            "decodes without speculation"
        )


def no_draft_types(configuration: Configuration, program: str) -> Iterator[str]:
    """That a draft model's cache has types of the program's own."""
    draft = configuration.draft
    if draft is not None and (draft.type_k, draft.type_v) != ("f16", "f16"):
        yield (
            f"the draft's KV types are {draft.type_k} and {draft.type_v}: {program} has no setting "
            "for them"
        )


def flash_is_on(configuration: Configuration, program: str) -> Iterator[str]:
    """That flash attention is not left open there."""
    if configuration.flash_attention == "auto":
        yield f"flash_attention is auto: {program} has on and off, and gets on"


def one_length(
    configuration: Configuration, program: str, n_draft: int | None = None
) -> Iterator[str]:
    """That drafts have one length there: `n_draft`, else that of the settings."""
    speculation = configuration.speculation
    if speculation.controller is not ControllerName.FIXED:
        yield (
            f"the controller is {speculation.controller}: {program} drafts up to "
            f"a length of {n_draft or speculation.n_draft} in every round"
        )


def _bits(name: str) -> float:
    return TYPES_BY_NAME[name].bits


def _shown(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case Path():
            return value.name
        case TensorOverride():
            return f"{value.pattern}={value.device}"
        case tuple():
            return ", ".join(map(_shown, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)
