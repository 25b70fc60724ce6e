"""What `kvchat pairs` prints for people."""

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.format import nbytes
from app.render.console import console
from app.sanitize import one_line
from engine.planning.pairs import JudgedDraft, JudgedPairs, server_options
from engine.speculation.pairs import Advice, Worth

N_DRAFTS = 20
N_MISFITS = 12
"""Models that are named of those that can draft, and of those that cannot; JSON names all."""
STYLES = {Worth.USE: "green", Worth.DEPENDS: "", Worth.HARDLY: "yellow", Worth.NEVER: "red"}


def print_pairs(found: JudgedPairs) -> None:
    """Print the drafts on this machine, those that are missing, what cannot draft, and the best."""
    screen = console()
    if found.problem is not None:
        screen.print(Text(f"{found.target}: {found.problem}", style="red"))
        return
    if found.drafts:
        _print_drafts(screen, found.drafts)
    else:
        screen.print(Text(f"No model here can draft for {found.target}."))
    if found.missing:
        screen.print(Text("\nNot on this machine (figures for Q4_K_M):", style="bold"))
        _print_drafts(screen, found.missing)
    _print_misfits(screen, found.misfits)
    screen.print(Text(f"\nWithout a draft model, by look-up: {found.look_up.reason}."))
    _print_best(screen, found)


def _print_drafts(screen: Console, drafts: Sequence[JudgedDraft]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    are_here = drafts[0].path is not None
    place = () if are_here else ("published as",)
    for title in ("draft", "quant", "size", "reads", "verdict", "gain", "length", *place):
        is_number = title in ("size", "reads", "length")
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    shown = drafts[:N_DRAFTS]
    for draft in shown:
        where = () if are_here else (draft.published_as or "-",)
        style = STYLES[draft.advice.worth]
        table.add_row(*(Text(one_line(cell)) for cell in (*_cells(draft), *where)), style=style)
    screen.print(table)
    for draft in shown:
        screen.print(Text(f"{draft.name}: {draft.advice.reason}"))
    _print_rest(screen, len(drafts) - N_DRAFTS)


def _print_rest(screen: Console, n_more: int) -> None:
    if n_more > 0:
        screen.print(Text(f"and {n_more} more: --json names all"))


def _cells(draft: JudgedDraft) -> tuple[str, ...]:
    return (
        draft.name,
        draft.file_type or "-",
        "-" if draft.nbytes is None else nbytes(draft.nbytes),
        "-" if draft.share is None else f"{draft.share:.0%}",
        str(draft.advice.worth),
        _gain(draft.advice),
        str(draft.advice.n_draft or "-"),
    )


def _gain(advice: Advice) -> str:
    if advice.low is None or advice.high is None:
        return "-"
    return f"{advice.low.factor:.2f}x to {advice.high.factor:.2f}x"


def _print_misfits(screen: Console, misfits: Sequence[JudgedDraft]) -> None:
    if misfits:
        screen.print(Text("\nThese cannot draft for it:", style="bold"))
    for draft in misfits[:N_MISFITS]:
        screen.print(Text(f"{draft.name}: {draft.advice.reason}"))
    _print_rest(screen, len(misfits) - N_MISFITS)


def _print_best(screen: Console, found: JudgedPairs) -> None:
    best = found.best
    if best is None:
        return
    screen.print(Text(f"\nLoad {best.name}:", style="bold"))
    kvchat = ["kvchat", found.target, "--draft", best.name]
    server = ["llama-server", "-m", str(found.target_path), *server_options(best)]
    for words in (kvchat, server):
        screen.print(Text(f"  {shlex.join(words)}"), soft_wrap=True)
