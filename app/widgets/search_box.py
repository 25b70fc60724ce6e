"""A line to search with; the arrow leads on to what was found."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input


class SearchBox(Input):
    """Where the user writes what is searched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.to_list", "To the list", id="search-to-list",
                tooltip="From the search to what was found"),
    ]  # fmt: skip
