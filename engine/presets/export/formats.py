"""Every program and wrapping that a configuration can leave for."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.presets.export import llama_server
from engine.presets.export.flag_sets import FLAG_SETS, FlagSetName
from engine.presets.export.request import Exported, ExportRequest

__all__ = ["FORMATS", "ExportFormat", "ExportRequest", "Exported"]


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """One way out."""

    name: str
    """How the command line and the screen call it."""
    title: str
    file_name: Callable[[ExportRequest], str]
    render: Callable[[ExportRequest], Exported]
    has_comments: bool
    """Whether the text itself carries the remarks; else they are told beside it."""
    flag_sets: tuple[FlagSetName, ...] = ()
    """The families of llama-server that it can address; empty where it starts none."""
    merge: Callable[[str, str], str] | None = None
    """Joins a text that is there already with the exported one, which wins."""


FORMATS: dict[str, ExportFormat] = {
    each.name: each
    for each in (
        ExportFormat(
            "llama-server",
            "llama-server command line",
            llama_server.file_name,
            llama_server.render,
            has_comments=False,
            flag_sets=tuple(FLAG_SETS),
        ),
    )
}
