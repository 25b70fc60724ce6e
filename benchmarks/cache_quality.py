"""kvchat's figures of cache kinds beside those of `llama-perplexity --kl-divergence`.

Both decode the same windows of the same text with the same types: windows of `--ctx` tokens, each
with the model's first token in front, of which the second half is scored. The tool writes the
reference's logits to a file and runs once for each kind; kvchat reads all kinds at once and writes
none. Rounds alternate, and times and memory are those of whole processes.

`--library` makes kvchat load llama.cpp from a folder, so that both run the very same build.

    python benchmarks/cache_quality.py compare MODEL --tool .../llama-perplexity --library .../bin
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from engine.backends.base import Forward, Vocabulary
from engine.backends.base import Sequence as Line
from engine.configuration import KVTypes
from engine.quality.texts import Document

KINDS = "q8_0,q8_0/q5_1,q5_1,q8_0/q4_0,q4_0"
FIGURES = {
    "mean": re.compile(r"^Mean\s+KLD:\s+(-?[\d.]+)", re.MULTILINE),
    "p99.9": re.compile(r"^99\.9%\s+KLD:\s+(-?[\d.]+)", re.MULTILINE),
    "same top": re.compile(r"^Same top p:\s+([\d.]+)", re.MULTILINE),
    "loss": re.compile(r"^Mean ln\(PPL\(Q\)/PPL\(base\)\)\s*:\s+(-?[\d.]+)", re.MULTILINE),
}
"""What the tool prints; the share of the same top token in per cent."""
TOOL_BATCH = 512
"""Tokens that the tool computes at once."""
LIMITS = {"mean": 3.0, "p99.9": 10.0, "same top": 0.2}
"""Most that a figure may be off: per cent, and points of the last one."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Side:
    """What one side took for all kinds."""

    figures: dict[str, dict[str, float]]
    """By kind and name."""
    elapsed_s: float
    peak_bytes: int
    """Of the largest of its processes."""
    processor_s: float
    """Of all cores and processes."""
    decode_s: float
    """Of decoding alone: reading the model, softmaxes and files left out."""
    reference_s: float = 0.0
    """Of the run that writes the reference's logits."""
    file_bytes: int = 0
    """Of the file of logits."""


def main() -> None:
    options = _options()
    match options.command:
        case "compare":
            compare(options)
        case "own":
            own(options)
        case "decode":
            decode(options)


def compare(options: argparse.Namespace) -> None:
    """Print figures, times and memory of both sides."""
    kinds = options.kinds.split(",")
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        text = Path(folder) / "text.txt"
        text.write_text(_text(options.text))
        rounds = []
        for number in range(options.rounds):
            sides = [_tool(options, text, kinds), _own(options, text)]
            rounds.append(sides)
            print(f"round {number + 1}: {sides[0].elapsed_s:.1f} s, {sides[1].elapsed_s:.1f} s")
    _print_figures(rounds[-1][0], rounds[-1][1], kinds)
    _print_costs([each[0] for each in rounds], [each[1] for each in rounds], options.model)


def _text(path: Path | None) -> str:
    from engine.quality.texts import own_texts, read_text_file

    if path is not None:
        return read_text_file(path).text
    return "\n\n".join(each.text for each in own_texts())


def _print_figures(tool: Side, kvchat: Side, kinds: Sequence[str]) -> None:
    print(f"\n{'kind':>12} {'figure':>9} {'tool':>12} {'kvchat':>12}  off by")
    for kind in kinds:
        for name in FIGURES:
            theirs, ours = tool.figures[kind][name], kvchat.figures[kind][name]
            off = ours - theirs if name == "same top" else 100 * (ours / theirs - 1)
            unit = "points" if name == "same top" else "%"
            limit = LIMITS.get(name)
            shown = "" if limit is None else f"  limit {limit:g}: {_verdict(abs(off) <= limit)}"
            print(f"{kind:>12} {name:>9} {theirs:12.6f} {ours:12.6f}  {off:+.3f} {unit}{shown}")


def _print_costs(tools: Sequence[Side], kvchats: Sequence[Side], model: Path) -> None:
    ratios = [b.elapsed_s / a.elapsed_s for a, b in zip(tools, kvchats, strict=True)]
    ratio = median(ratios)
    print(f"\ntime: {ratio:.3f} of the tool's (pairs: {', '.join(f'{r:.3f}' for r in ratios)}),")
    print(f"      limit 0.7: {_verdict(ratio <= 0.7)}")
    used = median(b.processor_s / a.processor_s for a, b in zip(tools, kvchats, strict=True))
    print(f"      in time of processors {used:.3f}; the tool's reference counts once in both,")
    n_more = len(tools[0].figures) - 1
    each = median(
        b.elapsed_s / (a.elapsed_s + n_more * a.reference_s)
        for a, b in zip(tools, kvchats, strict=True)
    )
    print(f"      and where it is written again for each type it is {each:.3f}")
    theirs_s, ours_s = (median(side.decode_s for side in sides) for sides in (tools, kvchats))
    least = median(b.decode_s / a.elapsed_s for a, b in zip(tools, kvchats, strict=True))
    print(f"decoding alone: the tool's {theirs_s:.1f} s, kvchat's {ours_s:.1f} s, which", end="")
    print(f" is {least:.3f} of all that the tool takes: no comparison of rows can make it less")
    nbytes = max(each.file_bytes for each in tools)
    ours, theirs = (max(each.peak_bytes for each in sides) for sides in (kvchats, tools))
    beyond = ours - model.stat().st_size
    print(f"file of logits: {nbytes / MIB:.0f} MiB; peak of a process: the tool's ", end="")
    print(f"{theirs / MIB:.0f} MiB, kvchat's {ours / MIB:.0f} MiB")
    print(f"kvchat beyond the model's file: {beyond / MIB:.0f} MiB, {beyond / nbytes:.3f} of the ")
    n_rows = next(iter(kvchats[0].figures.values()))["rows"]
    print(f"file of {n_rows:,.0f} rows; limit 0.05: {_verdict(beyond <= nbytes / 20)}; ", end="")
    print("the file grows with the rows, and kvchat keeps the limit from ", end="")
    print(f"{20 * beyond / (nbytes / n_rows):,.0f} rows on")


def _verdict(is_within: bool) -> str:
    return "within" if is_within else "MISSED"


# --- the tool ---


def _tool(options: argparse.Namespace, text: Path, kinds: Sequence[str]) -> Side:
    logits = text.with_name("logits.bin")
    reference = options.reference
    started = time.perf_counter()
    _, used = _run_tool(options, text, logits, reference, [])
    reference_s = time.perf_counter() - started
    figures, usages = {}, [used]
    for kind in kinds:
        output_text, used = _run_tool(options, text, logits, kind, ["--kl-divergence"])
        usages.append(used)
        figures[kind] = {name: float(_found(one, output_text)) for name, one in FIGURES.items()}
    elapsed_s = time.perf_counter() - started
    nbytes = logits.stat().st_size
    logits.unlink()
    alone, _, _ = _child(options, text, "decode")
    side = _side(figures, elapsed_s, usages, alone["decode_s"])
    return replace(side, reference_s=reference_s, file_bytes=nbytes)


def _side(
    figures: dict[str, dict[str, float]],
    elapsed_s: float,
    usages: Sequence[resource.struct_rusage],
    decode_s: float,
) -> Side:
    peak = max(each.ru_maxrss for each in usages) * 1024
    processor_s = sum(each.ru_utime + each.ru_stime for each in usages)
    return Side(figures, elapsed_s, peak, processor_s, decode_s)


def _run_tool(
    options: argparse.Namespace, text: Path, logits: Path, kind: str, more: Sequence[str]
) -> tuple[str, resource.struct_rusage]:
    type_k, _, type_v = kind.partition("/")
    command = [
        options.tool, "-m", options.model, "-f", text, "-c", options.ctx, "-b", options.ctx,
        "-ub", min(options.ctx, TOOL_BATCH), "-t", options.threads, "-ctk", type_k, "-ctv",
        type_v or type_k, "-fa", "on", "--chunks", options.windows, "--kl-divergence-base", logits,
        *more,
    ]  # fmt: skip
    return _run([str(part) for part in command], {})


def _found(pattern: "re.Pattern[str]", output_text: str) -> str:
    match = pattern.search(output_text)
    if match is None:
        sys.exit(f"the tool printed no {pattern.pattern}:\n{output_text[-2000:]}")
    return match[1]


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[str, resource.struct_rusage]:
    """What a process printed, and what it used."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        output_text = output.read().decode("utf-8", "replace")
    if status:
        sys.exit(f"{command[0]} failed:\n{output_text[-2000:]}")
    return output_text, usage


# --- kvchat ---


def _own(options: argparse.Namespace, text: Path) -> Side:
    found, elapsed_s, used = _child(options, text, "own")
    return _side(found["figures"], elapsed_s, [used], found["decode_s"])


def _child(
    options: argparse.Namespace, text: Path, name: str
) -> tuple[dict[str, Any], float, resource.struct_rusage]:
    """What a command of this file printed, how long it took, and what it used."""
    command = [
        sys.executable, __file__, name, options.model, "--text", text, "--ctx", options.ctx,
        "--windows", options.windows, "--threads", options.threads, "--kinds", options.kinds,
        "--reference", options.reference, "--chunk", options.chunk,
    ]  # fmt: skip
    library = {"LLAMA_CPP_LIB_PATH": str(options.library)} if options.library else {}
    started = time.perf_counter()
    output_text, used = _run([str(part) for part in command], library)
    elapsed_s = time.perf_counter() - started
    return json.loads(output_text.splitlines()[-1]), elapsed_s, used


def own(options: argparse.Namespace) -> None:
    """Score the windows, and print the figures by kind as JSON."""
    from engine.configuration import Configuration
    from engine.contexts import LlamaCppContexts
    from engine.quality.metrics import Rows
    from engine.quality.scoring import BatchShape, score
    from engine.quality.summary import scores_of

    configuration = Configuration(
        options.model, options.ctx, n_threads=options.threads, flash_attention="on"
    )
    opener = LlamaCppContexts(configuration)
    kinds = [_kind(options.reference), *map(_kind, options.kinds.split(","))]
    shape = BatchShape(options.ctx, options.chunk, options.chunk)
    contexts = []
    for index, kind in enumerate(kinds):
        opened = opener.open(kind, shape, "candidate" if index else "reference")
        contexts.append(replace(opened, sequence=_TimedLine(opened.sequence)))
    found: list[list[Rows]] = [[] for _ in kinds]
    for document in _windows(opener.vocabulary, options):
        for chunk in score(document, contexts, n_chunk=options.chunk):
            for rows, each in zip(found, chunk.rows, strict=False):  # none where only read
                rows.append(each)
    figures = {}
    for name, rows in zip(options.kinds.split(","), found[1:], strict=True):
        scores = scores_of(rows, n_draws=0)
        figures[name] = {
            "mean": scores.kl_mean.value,
            "p99.9": scores.kl_p999.value,
            "same top": 100 * scores.same_top.value,
            "loss": scores.nll_delta.value,
            "rows": scores.n_tokens,
        }
    decode_s = sum(each.sequence.elapsed_s for each in contexts)
    print(json.dumps({"figures": figures, "decode_s": decode_s}))


def decode(options: argparse.Namespace) -> None:
    """The tool's calls of `llama_decode` with nothing around them; prints their time as JSON."""
    from engine.configuration import Configuration
    from engine.contexts import LlamaCppContexts
    from engine.quality.scoring import BatchShape

    configuration = Configuration(
        options.model, options.ctx, n_threads=options.threads, flash_attention="on"
    )
    opener = LlamaCppContexts(configuration)
    windows = list(_windows(opener.vocabulary, options))
    n_batch = min(options.ctx, TOOL_BATCH)
    decode_s = 0.0
    for kind in (options.reference, *options.kinds.split(",")):
        found = opener.open(_kind(kind), BatchShape(options.ctx, n_batch, n_batch))
        line = _TimedLine(found.sequence)
        for window in windows:
            line.crop(0)
            for start in range(0, options.ctx, n_batch):
                scored = max(start, min(window.first, start + n_batch))
                unread, read = window.tokens[start:scored], window.tokens[scored : start + n_batch]
                if read:
                    line.verify(read, unread=unread)
                else:
                    line.prefill(unread)
        decode_s += line.elapsed_s
        found.backend.close()
    print(json.dumps({"decode_s": decode_s}))


class _TimedLine:
    """A sequence that adds up how long it decodes."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.elapsed_s = 0.0

    def crop(self, length: int) -> None:
        self._line.crop(length)

    def prefill(self, tokens: Sequence[int]) -> None:
        started = time.perf_counter()
        self._line.prefill(tokens)
        self.elapsed_s += time.perf_counter() - started

    def verify(self, tokens: Sequence[int], *, unread: Sequence[int] = ()) -> Forward:
        started = time.perf_counter()
        forward = self._line.verify(tokens, unread=unread)
        self.elapsed_s += time.perf_counter() - started
        return forward


def _windows(vocabulary: Vocabulary, options: argparse.Namespace) -> Iterator[Document]:
    """The tool's windows: its first token is replaced, and the second half is scored."""
    tokens = vocabulary.tokenize(options.text.read_text(), add_special=True, parse_special=False)
    n_windows = len(tokens) // options.ctx
    if options.windows >= 0:
        n_windows = min(n_windows, options.windows)
    for number in range(n_windows):
        window = tokens[number * options.ctx : (number + 1) * options.ctx]
        if vocabulary.adds_bos and vocabulary.bos is not None:
            window[0] = vocabulary.bos
        yield Document(f"window {number}", "document", tuple(window), first=options.ctx // 2)


def _kind(name: str) -> KVTypes:
    type_k, _, type_v = name.partition("/")
    return KVTypes(type_k, type_v or type_k)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compare", "own", "decode"):
        one = commands.add_parser(name)
        one.add_argument("model", type=Path)
        one.add_argument("--text", type=Path, help="instead of kvchat's own texts")
        one.add_argument("--ctx", type=int, default=1024, help="tokens of a window")
        one.add_argument("--windows", type=int, default=-1, help="of the text; -1 takes all")
        one.add_argument("--chunk", type=int, default=64, help="tokens of kvchat's batches")
        one.add_argument("--threads", type=int, default=2)
        one.add_argument("--kinds", default=KINDS)
        one.add_argument("--reference", default="f16")
        if name == "compare":
            one.add_argument("--tool", type=Path, required=True, help="llama-perplexity")
            one.add_argument("--library", type=Path, help="folder with the tool's libllama.so")
            one.add_argument("--rounds", type=int, default=3)
            one.add_argument("--scratch", type=Path, help="folder for the file of logits")
    return parser.parse_args()


if __name__ == "__main__":
    main()
