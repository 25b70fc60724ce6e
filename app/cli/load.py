"""`kvchat load`: many users at one server at once, in a closed loop of chats."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app import format as fmt
from app.cli.console import note, note_waiting, print_json, say
from app.cli.options import Count, Number, joined
from app.cli.run_reply import EXIT_CANCELLED
from engine.servers import LOOPBACK, origin_of, parse_server

if TYPE_CHECKING:
    from engine.backends.server.facts import ServerFacts
    from engine.backends.server.many_users import LoadResult

MOST_USERS = 256
HEADS = ("users", "replies", "tok/s", "plan", "first", "p95", "each", "p5", "reused",
         "drafts")  # fmt: skip
WIDTHS = (5, 7, 6, 6, 7, 7, 6, 6, 6, 6)


load_options = joined(
    click.option("--model", "-m", metavar="MODEL", help="The model there. [the first]"),
    click.option("--users", default="1,2,4,8", show_default=True, metavar="N,N",
                 help="How many at once, one after the other."),
    click.option("--turns", type=Count(1, 100), default=3, show_default=True,
                 help="Of each user."),
    click.option("--max-tokens", type=Count(1, 65536), default=64, show_default=True,
                 help="Of each reply."),
    click.option("--seconds", type=Number(1, 86_400), default=120.0, show_default=True,
                 help="No question is asked behind this, for each number of users."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, each reply too."),
)  # fmt: skip


@click.command(name="load")
@click.argument("where", metavar="URL|PRESET")
@load_options
def command(
    where: str,
    model: str | None,
    users: str,
    turns: int,
    max_tokens: int,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Measure what a server gives to several users at once.

    Each user talks for some turns: it asks, waits for the reply, and asks again. The table has the
    speed of all together and the most that the planner foretells of a model that lies here, the
    wait for a first token, the speed of one reply, what the server found in its cache and which
    drafts it accepted. The last line is the number of users where more bring little.

    \b
    kvchat load http://cellar:8080 --users 1,2,4,8
    """  # noqa: D301  click wants the backspace character itself
    from engine.backends.server.many_users import LoadPlan, knee_of, run_load
    from engine.backends.server.session import ServerSession
    from engine.configuration import Configuration

    counts = _counts(users)
    url = _address(where)
    plan = LoadPlan(turns, max_tokens, seconds)
    session = ServerSession(Configuration.at_server(url, model, is_trusted=True), tell=note_waiting)
    foretold = foretold_by(session.facts, url)
    results: list[LoadResult] = []
    was_stopped = False
    try:
        note(session.loaded.notes[0])
        if not as_json:
            say(_row(HEADS))
        for n_users in counts:
            results.append(run_load(session, n_users, plan))
            if not as_json:
                say(_row(cells_of(results[-1], foretold(results[-1]))))
    except KeyboardInterrupt:
        was_stopped = True
        note("stopped: what follows is of the numbers of users that were measured whole")
    finally:
        session.close()
    knee = knee_of(results)
    if as_json:
        rows = [
            {"users": each.n_users, "tps": each.tps, "planned_tps": foretold(each), **asdict(each)}
            for each in results
        ]
        print_json({"results": rows, "knee": knee})
    elif results:
        _tell(results, knee, session.facts.n_slots)
    has_failed = any(result.n_failed for result in results)
    sys.exit(EXIT_CANCELLED if was_stopped else has_failed)


def foretold_by(facts: "ServerFacts", url: str) -> "Callable[[LoadResult], float | None]":
    """The most tokens a second that the planner foretells for so many users.

    None for a model that does not lie on this machine.
    """
    from app.planning import user_planner
    from engine.configuration import Configuration
    from engine.errors import EngineError
    from engine.planning.planner import Setup

    path, n_slots = Path(facts.model_path), facts.n_slots or 1
    bound = None
    if facts.n_ctx and origin_of(url)[1] in LOOPBACK and path.is_file():
        now = Configuration(path, n_ctx=facts.n_ctx * n_slots, n_slots=n_slots)
        with suppress(EngineError):  # it is a help: the server serves what it serves
            bound = user_planner().plan(Setup(now, "llama-server")).bound

    def most(result: "LoadResult") -> float | None:
        lengths = [turn.n_prompt + turn.n_tokens / 2 for turn in result.turns if not turn.fault]
        if bound is None or not lengths:
            return None
        return bound.together(min(result.n_users, n_slots), round(sum(lengths) / len(lengths)))

    return most


def _address(where: str) -> str:
    """The server that was named by its address or by a preset."""
    from app import paths
    from engine.presets.library import find_preset

    if "://" in where or ":" in where:
        return parse_server(where)
    server = find_preset(where, paths.presets_dir()).server
    if server is None:
        raise click.UsageError(
            f"the preset {where} names no server: `kvchat serve {where}` starts one and says its "
            "address"
        )
    return server


def _counts(users: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in users.split(",")})
    except ValueError as error:
        raise click.UsageError(f"--users takes numbers as in 1,2,4, not {users!r}") from error
    if not counts or counts[0] < 1 or counts[-1] > MOST_USERS:
        raise click.UsageError(f"--users takes numbers from 1 to {MOST_USERS}")
    return counts


def _row(cells: tuple[str, ...]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def cells_of(result: "LoadResult", planned_tps: float | None) -> tuple[str, ...]:
    """A row of the table, under `HEADS`."""
    turns = result.turns
    n_prompt, n_reused = sum(t.n_prompt for t in turns), sum(t.n_reused for t in turns)
    n_drafted, n_accepted = sum(t.n_drafted for t in turns), sum(t.n_accepted for t in turns)
    return (
        str(result.n_users),
        f"{len(turns) - result.n_failed}/{len(turns)}",
        fmt.rate(result.tps),
        _rate(planned_tps),
        fmt.seconds(result.first_s(0.5)),
        fmt.seconds(result.first_s(0.95)),
        _rate(result.reply_tps(0.5)),
        _rate(result.reply_tps(0.95)),
        fmt.percent(n_reused / n_prompt) if n_prompt else fmt.NO_VALUE,
        fmt.percent(n_accepted / n_drafted) if n_drafted else fmt.NO_VALUE,
    )


def _rate(tps: float | None) -> str:
    return fmt.NO_VALUE if tps is None else fmt.rate(tps)


def _tell(results: "list[LoadResult]", knee: int | None, n_slots: int | None) -> None:
    slots = "" if n_slots is None else f"; it makes {n_slots} replies at once"
    if knee is None:
        say(f"more users brought more up to {results[-1].n_users}{slots}")
    else:
        say(f"more than {knee} users bring little{slots}")
    faults = {turn.fault for result in results for turn in result.turns if turn.fault}
    for fault in sorted(faults)[:5]:
        note(fault)
