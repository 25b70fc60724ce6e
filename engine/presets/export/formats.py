"""Every program and wrapping that a configuration can leave for."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.presets.export import (
    docker_compose,
    koboldcpp,
    llama_cpp_python,
    llama_server,
    llama_swap,
    lm_studio,
    models_preset,
    ollama,
    shell_script,
    systemd_unit,
)
from engine.presets.export.flag_sets import FLAG_SETS, FlagSetName
from engine.presets.export.request import Exported, ExportRequest

__all__ = ["FORMATS", "ExportFormat", "ExportRequest", "Exported"]

ALL: tuple[FlagSetName, ...] = tuple(FLAG_SETS)


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """One way out."""

    name: str
    """How the command line and the screen call it."""
    title: str
    file_name: Callable[[ExportRequest], str]
    render: Callable[[ExportRequest], Exported]
    has_comments: bool = True
    """Whether the text itself carries remarks and warnings; else they are told beside it."""
    flag_sets: tuple[FlagSetName, ...] = ()
    """The families of llama-server that it can address; empty where it starts none."""
    merge: Callable[[str, str], str] | None = None
    """Joins a text that is there already with the exported one, which wins."""


FORMATS: dict[str, ExportFormat] = {
    each.name: each
    for each in (
        ExportFormat(
            "llama-server",
            "llama-server on the command line",
            llama_server.file_name,
            llama_server.render,
            has_comments=False,
            flag_sets=ALL,
        ),
        ExportFormat(
            "shell",
            "shell script that starts llama-server",
            shell_script.file_name,
            shell_script.render,
            flag_sets=ALL,
        ),
        ExportFormat(
            "systemd",
            "systemd service with llama-server",
            systemd_unit.file_name,
            systemd_unit.render,
            flag_sets=ALL,
        ),
        ExportFormat(
            "compose",
            "docker compose with llama.cpp's image",
            docker_compose.file_name,
            docker_compose.render,
            flag_sets=("current",),
        ),
        ExportFormat(
            "models-preset",
            "llama-server router, --models-preset INI",
            models_preset.file_name,
            models_preset.render,
            flag_sets=("current",),
        ),
        ExportFormat(
            "llama-swap",
            "llama-swap YAML",
            llama_swap.file_name,
            llama_swap.render,
            flag_sets=ALL,
        ),
        ExportFormat(
            "lm-studio",
            "LM Studio defaults of the model, JSON",
            lm_studio.file_name,
            lm_studio.render,
            has_comments=False,
            merge=lm_studio.merge,
        ),
        ExportFormat(
            "ollama",
            "Ollama Modelfile and environment",
            ollama.file_name,
            ollama.render,
        ),
        ExportFormat(
            "koboldcpp",
            "koboldcpp settings, .kcpps",
            koboldcpp.file_name,
            koboldcpp.render,
            has_comments=False,
        ),
        ExportFormat(
            "llama-cpp-python",
            "llama-cpp-python server, JSON",
            llama_cpp_python.file_name,
            llama_cpp_python.render,
            has_comments=False,
        ),
    )
}
"""By name, in the order that lists show."""
