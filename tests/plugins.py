"""Packages that bring predictors, made up in a folder on the module path."""

from pathlib import Path
from textwrap import dedent

import pytest


def install_predictor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, *, attribute: str
) -> None:
    """Put a package with one entry point where Python finds packages, for one test."""
    module = f"plugin_{name}_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(dedent(source))
    described = folder / f"{module}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(
        f"[kvchat.predictors]\n{name} = {module}:{attribute}\n"
    )
    monkeypatch.syspath_prepend(folder)
