"""Compares the sizes of the catalogue's models with those that llama.cpp's own quantiser gives.

    ../.venv/bin/python quantization.py [NAME ...]

Each model is written as a 16-bit file without data; llama.cpp names the type of every tensor for
each quantisation in a dry run, which reads the header only.
"""

import ctypes
import re
import sys
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import llama_cpp
from accuracy_models import write_header

from engine.model.catalog import QUANTIZATIONS, WEIGHTS_SPREAD, CatalogEntry, entries, find_entry
from engine.model.ggml import FILE_TYPE_IDS, TYPES_BY_NAME

ROW = re.compile(
    r"\] (?P<name>\S+)\s+- \[.*?\], type =\s*(?P<old>\S+), size =(?:.*\((?P<new>\S+)\))?"
)
"""A tensor of the quantiser's log; one without an arrow keeps its type."""

SKIPPED = {"F16", "BF16", "F32"}
BY_NAME = {name.lower(): kind for name, kind in TYPES_BY_NAME.items()}


class Quantizer:
    """llama.cpp's quantiser in a dry run, asked for the types that it would give."""

    def __init__(self) -> None:
        self._text = ""
        self._callback = llama_cpp.llama_log_callback(self._receive)
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _receive(self, _level: int, text: bytes, _data: int | None) -> None:
        self._text += text.decode("utf-8", "replace")

    def types(self, path: Path, quantization: str, **choices: int) -> dict[str, str]:
        """The type of each tensor of a 16-bit file once it were quantised.

        `choices` are further parameters of llama.cpp's quantiser.
        """
        self._text = ""
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = FILE_TYPE_IDS[quantization]
        params.dry_run = True
        params.nthread = 1
        for name, value in choices.items():
            setattr(params, name, value)
        code = llama_cpp.llama_model_quantize(
            str(path).encode(), b"not-written.gguf", ctypes.byref(params)
        )
        if code:
            raise click.ClickException(f"{path.name}, {quantization}: {self._text[-500:]}")
        return {match["name"]: match["new"] or match["old"] for match in ROW.finditer(self._text)}


def sizes(entry: CatalogEntry, quantization: str, real: dict[str, str]) -> tuple[int, int]:
    """Bytes of all tensors, by the catalogue and by llama.cpp's types.

    Experts that were published in MXFP4 are left out: files of such models keep them.
    """
    whole = {tensor.name: tensor.type for tensor in entry.tensors()}
    mine = theirs = 0
    for tensor in entry.header(quantization).tensors:
        if whole[tensor.name].name != "mxfp4":
            mine += tensor.nbytes
            theirs += BY_NAME[real[tensor.name].lower()].row_bytes(prod(tensor.shape))
    return mine, theirs


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Compare catalogue models in every quantisation that has rules."""
    quantizer = Quantizer()
    chosen = [find_entry(name) for name in names] or list(entries())
    n_cases = n_wrong = 0
    with TemporaryDirectory() as folder:
        for entry in chosen:
            path = write_header(entry, "F16", Path(folder))
            for quantization in QUANTIZATIONS:
                if quantization in SKIPPED:
                    continue
                mine, theirs = sizes(entry, quantization, quantizer.types(path, quantization))
                n_cases += 1
                n_wrong += abs(mine - theirs) > WEIGHTS_SPREAD * theirs
                click.echo(f"{entry.name} {quantization}: {mine / theirs - 1:+.2%}")
            path.unlink()
    click.echo(f"{n_cases - n_wrong} of {n_cases} within {100 * WEIGHTS_SPREAD:g} %")
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
