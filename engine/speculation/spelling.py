"""How a predictor is typed."""

from dataclasses import replace

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import PresetError

NAMES = tuple(name.value for name in PredictorName if name is not PredictorName.CUSTOM)
CUSTOM_FORM = "custom:NAME"
HEADS = ("mtp", "draft-mtp", "eagle3", "draft-eagle3")
"""Drafting heads as other programs name them; kvchat has no predictor for them."""


def with_predictor(settings: SpeculationSettings, spelled: str) -> SpeculationSettings:
    """Give the settings with the predictor that `off`, `lookup` or `custom:NAME` spells.

    Raises:
        PresetError: it spells none; the message lists what there is.
    """
    kind, _, name = spelled.strip().partition(":")
    if kind == PredictorName.CUSTOM and name:
        return replace(settings, predictor=PredictorName.CUSTOM, custom_predictor=name)
    if kind in NAMES and not name:
        return replace(settings, predictor=PredictorName(kind))
    known = ", ".join((*NAMES, CUSTOM_FORM))
    if kind in HEADS:
        raise PresetError(
            f"{kind} drafts with a head of the model's own, which kvchat's engine does not run: "
            "a head reads hidden states, and kvchat's predictors are told tokens only. "
            f"Use one of {known} here; llama-server can run the head: `kvchat export` writes "
            "`--spec-type draft-mtp` where the preset has n_mtp_draft"
        )
    raise PresetError(f"there is no predictor {spelled!r}: there are {known}")
