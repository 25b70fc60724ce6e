"""An application for one widget, with kvchat's real styles."""

from pathlib import Path

from textual.app import App

import app
from app.themes import theme_variable_defaults

STYLES = Path(app.__file__).parent / "styles"


class Host(App[None]):
    CSS_PATH = sorted(STYLES.glob("*.tcss"))  # type: ignore[assignment]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults()
