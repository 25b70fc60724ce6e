"""Knobs that choose a file: a draft model, a projector, adapters."""

from dataclasses import replace
from pathlib import Path

from app.planning.knob import Facts, Knob, choice, with_configuration
from app.planning.plan import Setup
from app.planning.values import parse_count, parse_file
from engine.configuration import DRAFT_N_CTX, MAX_DRAFT, DraftConfiguration, PredictorName

NONE = "none"


def with_draft(setup: Setup, path: Path | None) -> Setup:
    """Put a draft model beside the target, or take it away; the predictor follows."""
    now = setup.configuration
    speculation, draft = now.speculation, None
    if path is not None:
        draft = DraftConfiguration(path, n_ctx=min(now.n_ctx, DRAFT_N_CTX))
        speculation = replace(speculation, predictor=PredictorName.DRAFT)
    elif speculation.predictor is PredictorName.DRAFT:
        speculation = replace(speculation, predictor=PredictorName.SUFFIX)
    return with_configuration(setup, replace(now, draft=draft, speculation=speculation))


def with_projector(setup: Setup, path: Path | None) -> Setup:
    """Put a projector for images or sound beside the model, or take it away."""
    return with_configuration(setup, replace(setup.configuration, mmproj_path=path))


def with_adapter(setup: Setup, path: Path | None) -> Setup:
    """Add an adapter; None takes the last one away."""
    now = setup.configuration.lora_paths
    paths = now[:-1] if path is None else (*(kept for kept in now if kept != path), path)
    return with_configuration(setup, replace(setup.configuration, lora_paths=paths))


def _shown_draft(setup: Setup) -> str:
    draft = setup.configuration.draft
    return NONE if draft is None else draft.model_path.stem


def _shown_projector(setup: Setup) -> str:
    path = setup.configuration.mmproj_path
    return NONE if path is None else path.stem


def _shown_adapters(setup: Setup) -> str:
    paths = setup.configuration.lora_paths
    return NONE if not paths else paths[0].stem if len(paths) == 1 else f"{len(paths)} files"


def _read_draft(setup: Setup, text: str) -> Setup:
    return with_draft(setup, _file_or_none(text, _shown_draft(setup), _draft_path(setup)))


def _draft_path(setup: Setup) -> Path | None:
    draft = setup.configuration.draft
    return None if draft is None else draft.model_path


def _read_projector(setup: Setup, text: str) -> Setup:
    now = setup.configuration.mmproj_path
    return with_projector(setup, _file_or_none(text, _shown_projector(setup), now))


def _read_adapters(setup: Setup, text: str) -> Setup:
    if text.strip() == _shown_adapters(setup):
        return setup
    if text.strip().lower() == NONE:
        return with_configuration(setup, replace(setup.configuration, lora_paths=()))
    return with_adapter(setup, parse_file(text))


def _file_or_none(text: str, shown: str, now: Path | None) -> Path | None:
    if text.strip() == shown:
        return now
    return None if text.strip().lower() == NONE else parse_file(text)


def _kvchat_loads_none(setup: Setup, facts: Facts) -> str:
    del facts
    return "kvchat loads no projector" if setup.target == "kvchat" else ""


def _no_projector(setup: Setup, facts: Facts) -> str:
    if setup.configuration.mmproj_path is None:
        return "no projector is chosen"
    return _kvchat_loads_none(setup, facts)


def _no_head(setup: Setup, facts: Facts) -> str:
    if not facts.model.architecture.head_layers:
        return "this model has no head for next tokens"
    return "kvchat does not draft with it" if setup.target == "kvchat" else ""


def _put_head(setup: Setup, n_tokens: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_mtp_draft=n_tokens))


def _shown_head(setup: Setup) -> str:
    return str(setup.configuration.n_mtp_draft or "off")


def _turn_head(setup: Setup, _: Facts, step: int) -> Setup:
    return _put_head(setup, min(max(setup.configuration.n_mtp_draft + step, 0), MAX_DRAFT))


def _read_head(setup: Setup, text: str) -> Setup:
    if text.strip().lower() == "off":
        return _put_head(setup, 0)
    return _put_head(setup, parse_count(text, low=0, high=MAX_DRAFT))


FILE_KNOBS: tuple[Knob, ...] = (
    Knob(
        "mmproj", "projector", "A file for images or sound: right chooses, left takes it off.",
        _shown_projector,
        lambda setup, _, step: with_projector(setup, None) if step < 0 else setup,
        _read_projector, _kvchat_loads_none, chooser="projector",
    ),
    choice(
        "mmproj_offload", "projector on", "Where the projector lies.",
        ("GPU", "CPU"),
        lambda setup: "GPU" if setup.configuration.mmproj_offload else "CPU",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, mmproj_offload=value == "GPU")
        ),
        idle=_no_projector,
    ),
    Knob(
        "lora", "LoRA files", "Adapters beside the model: right adds one, left takes one off.",
        _shown_adapters,
        lambda setup, _, step: with_adapter(setup, None) if step < 0 else setup,
        _read_adapters, chooser="adapter",
    ),
    Knob(
        "draft", "draft model", "A small model that guesses ahead: right chooses, left takes it "
        "off.",
        _shown_draft,
        lambda setup, _, step: with_draft(setup, None) if step < 0 else setup,
        _read_draft, chooser="draft",
    ),
    Knob(
        "n_mtp_draft", "own head", "Tokens that the model's own head drafts; 0 is off.",
        _shown_head, _turn_head, _read_head, _no_head,
    ),
)  # fmt: skip
