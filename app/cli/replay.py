"""`kvchat replay`: generate the replies of a manifest again, and compare them."""

import time
from pathlib import Path

import click

from app.cli import completion
from app.cli.options import FILE
from app.cli.replies import (
    exit_code,
    loaded,
    metrics_option,
    output_options,
    summary,
    write_manifest_option,
)
from app.config import load_settings
from app.console import note, print_json
from app.manifests import difference, open_manifest
from engine.events import Finished, FinishReason


@click.command(name="replay")
@click.argument("manifest_path", metavar="MANIFEST", type=FILE)
@click.option("--model", "-m", metavar="MODEL", shell_complete=completion.models,
              help="Model: a path or a name. [the path in the manifest]")  # fmt: skip
@write_manifest_option
@metrics_option
@output_options
def command(
    *,
    manifest_path: Path,
    model: str | None,
    written_path: Path | None,
    metrics_path: Path | None,
    as_json: bool,
    is_verbose: bool,
) -> int:
    """Reproduce the run of MANIFEST token for token; exit with 1 if a reply differs.

    The manifest sets everything but the place of the model, whose file must be the same.

    \b
    kvchat run --write-manifest hello.toml "Hello"
    kvchat replay hello.toml
    """  # noqa: D301  click wants the backspace character itself
    since = time.time()
    manifest, configuration = open_manifest(manifest_path, model, load_settings().settings)
    finished: list[Finished] = []
    summaries: list[dict[str, object]] = []
    differences: list[str] = []
    with loaded(configuration, metrics_path, is_verbose=is_verbose) as replies:
        for index, request in enumerate(manifest.requests):
            reply = replies.answer(request, shows_text=not as_json)
            finished.append(reply)
            summaries.append(summary(reply, replies.prompt))
            if reply.reason is FinishReason.CANCELLED:
                break
            differences += filter(None, [difference(manifest, index, reply)])
        if written_path is not None:
            prompts, request = manifest.prompts, manifest.requests[0]
            replies.write_manifest(written_path, prompts, manifest.system, request, finished, since)
    if as_json:
        print_json(summaries if len(manifest.prompts) > 1 else summaries[0])
    for text in differences:
        note(text)
    return max(int(bool(differences)), *map(exit_code, finished))
