"""Speculation in the words of llama-server."""

from collections.abc import Iterator

from engine.configuration import (
    Configuration,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.presets.export.flag_sets import FlagSet
from engine.presets.export.words import Option, layers, number


def speculation_options(configuration: Configuration, flags: FlagSet) -> Iterator[Option]:
    """Give the options that make llama-server draft as the configuration says, if it can.

    Today's server takes its types in one list, so they are joined; the model's own head and a draft
    model share one length there, so the head drafts alone where both are asked for.
    """
    given = list(_predictor_options(configuration, flags))
    types = [option.value for option in given if option.name == "spec-type" and option.value]
    if flags.name == "current" and len(types) > 1:
        yield Option("spec-type", ",".join(types))
        given = [option for option in given if option.name != "spec-type"]
    yield from given


def has_head(configuration: Configuration, flags: FlagSet) -> bool:
    """Whether the model's own next-token head drafts."""
    return configuration.n_mtp_draft > 0 and flags.name != "legacy"


def is_drafted_behind(configuration: Configuration, flags: FlagSet) -> bool:
    """Whether a draft model guesses where the look-up is silent: today's server asks it next.

    As `combined` does here; llama.cpp 0c1e57098 takes the first draft that is not empty, look-up
    before draft model (`common/speculative.cpp`).
    """
    is_combined = configuration.speculation.predictor is PredictorName.COMBINED
    has_draft = configuration.draft is not None and not has_head(configuration, flags)
    return is_combined and has_draft and flags.name == "current"


def _predictor_options(configuration: Configuration, flags: FlagSet) -> Iterator[Option]:
    is_headed = has_head(configuration, flags)
    if is_headed:
        yield from _head(configuration.n_mtp_draft, flags)
    match configuration.speculation.predictor:
        case PredictorName.LOOKUP | PredictorName.SUFFIX | PredictorName.COMBINED:
            yield from _lookup(configuration.speculation, flags)
            if is_drafted_behind(configuration, flags) and configuration.draft is not None:
                yield from _draft(configuration.draft, configuration.speculation, flags)
        case PredictorName.DRAFT if configuration.draft is not None and not is_headed:
            yield from _draft(configuration.draft, configuration.speculation, flags)


def _head(n_draft: int, flags: FlagSet) -> Iterator[Option]:
    if flags.name == "ik":
        yield Option("spec-type", f"mtp:n_max={n_draft},p_min=0")
    else:
        yield Option("spec-type", "draft-mtp")
        yield Option("spec-draft-n-max", str(n_draft))


def _lookup(speculation: SpeculationSettings, flags: FlagSet) -> Iterator[Option]:
    pattern, length = str(speculation.lookup_pattern_min), str(speculation.n_draft_of_server)
    match flags.name:
        case "current":
            yield Option("spec-type", "ngram-simple")
            yield Option("spec-ngram-simple-size-n", pattern)
            yield Option("spec-ngram-simple-size-m", length)
        case "ik":
            stage = f"ngram-simple:n_max={length},ngram_size_n={pattern},ngram_size_m={length}"
            yield Option("spec-type", stage)
        case "legacy":
            yield Option("spec-type", "ngram-simple")
            yield Option("spec-ngram-size-n", pattern)
            yield Option("spec-ngram-size-m", length)
            yield Option("draft-max", length)


def _draft(
    draft: DraftConfiguration, speculation: SpeculationSettings, flags: FlagSet
) -> Iterator[Option]:
    n_max = str(speculation.n_draft)
    n_min = str(min(speculation.draft_min_tokens, speculation.n_draft))
    p_min = number(speculation.draft_min_confidence)
    path, n_layers = str(draft.model_path), layers(draft.n_gpu_layers, flags)
    match flags.name:
        case "current":
            yield Option("spec-type", "draft-simple")
            yield Option("model-draft", path)
            yield Option("spec-draft-n-max", n_max)
            yield Option("spec-draft-n-min", n_min)
            yield Option("spec-draft-p-min", p_min)
            yield Option("spec-draft-ngl", n_layers)
            yield Option("spec-draft-type-k", draft.type_k)
            yield Option("spec-draft-type-v", draft.type_v)
        case "legacy":
            yield Option("model-draft", path)
            yield Option("draft-max", n_max)
            yield Option("draft-min", n_min)
            yield Option("draft-p-min", p_min)
            yield from _draft_cache(draft, n_layers)
        case "ik":
            yield Option("model-draft", path)
            yield Option("spec-type", f"draft:n_max={n_max},n_min={n_min},p_min={p_min}")
            yield from _draft_cache(draft, n_layers)


def _draft_cache(draft: DraftConfiguration, n_layers: str) -> Iterator[Option]:
    yield Option("gpu-layers-draft", n_layers)
    yield Option("cache-type-k-draft", draft.type_k)
    yield Option("cache-type-v-draft", draft.type_v)
