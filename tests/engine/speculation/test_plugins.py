"""Predictors of other packages: found by name, imported when named, refused with the reason."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import PredictorError
from engine.speculation.predictors.plugins import PredictorSetup, make_plugin, plugin_names
from engine.speculation.registry import CustomPredictors
from engine.testing import FakeVocabulary
from tests.plugins import install_predictor

VOCABULARY = FakeVocabulary()
SETTINGS = SpeculationSettings(PredictorName.CUSTOM, custom_predictor="mine")
SETUP = PredictorSetup(VOCABULARY, SETTINGS, n_ctx=128)
GOOD = """
class Mine:
    name = "mine"
    n_made = 0
    closed = 0

    def __init__(self, setup):
        type(self).n_made += 1
        self.seen = (setup.n_vocab, setup.n_ctx, setup.settings.custom_predictor)

    def reset(self, history): ...
    def commit(self, tokens): ...
    def propose(self): return iter(())

    def close(self):
        type(self).closed += 1


def nothing(setup):
    return 7


def failing(setup):
    raise OSError("no such index")


number = 3
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, attribute: str = "Mine") -> None:
    install_predictor(folder, monkeypatch, "mine", GOOD, attribute=attribute)


def test_what_is_installed_is_listed_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "mine" not in plugin_names()
    install(tmp_path, monkeypatch)
    assert "mine" in plugin_names()
    assert not any(tmp_path.name.replace("-", "_") in module for module in sys.modules)


def test_the_factory_gets_vocabulary_context_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    made = make_plugin("mine", SETUP)
    assert getattr(made, "seen", None) == (VOCABULARY.n_tokens, 128, "mine")


def test_a_name_that_is_not_installed_is_told_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    with pytest.raises(PredictorError, match=r"'other' is installed \(installed: .*mine"):
        make_plugin("other", SETUP)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("missing", "raised AttributeError"),
        ("number", "is no factory"),
        ("nothing", "gave a int without reset, commit, propose, close"),
        ("failing", "raised OSError: no such index"),
    ],
)
def test_a_broken_factory_is_told(
    attribute: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, attribute)
    with pytest.raises(PredictorError, match=said):
        make_plugin("mine", SETUP)


def test_a_package_that_cannot_be_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_predictor(tmp_path, monkeypatch, "mine", "import not_there_at_all", attribute="Mine")
    with pytest.raises(PredictorError, match=r"import .* raised ModuleNotFoundError"):
        make_plugin("mine", SETUP)


def test_two_packages_with_one_name_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        install(folder, monkeypatch)
    with pytest.raises(PredictorError, match="several packages"):
        make_plugin("mine", SETUP)


def test_it_is_kept_from_reply_to_reply_and_closed_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    custom = CustomPredictors(VOCABULARY, n_ctx=128)
    made = custom.give(SETTINGS)
    assert custom.give(replace(SETTINGS)) is made
    assert custom.give(replace(SETTINGS, n_draft=7)) is not made
    assert getattr(made, "closed", None) == 1
    custom.close()
    custom.close()
    assert getattr(made, "closed", None) == 2


def test_no_name_is_told() -> None:
    with pytest.raises(PredictorError, match="custom:NAME"):
        CustomPredictors(VOCABULARY, n_ctx=128).give(replace(SETTINGS, custom_predictor=""))
