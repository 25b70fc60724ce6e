"""The file of a comparison: a head with the setup, and one JSON line for each reply."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

NEXT_COMMAND = "; "
"""Between the commands of a file that went on."""


class PeerError(Exception):
    """A peer, or a file of results, cannot be used; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a peer generated for a prompt, and how long it took."""

    tokens: tuple[int, ...]
    """Generated ids, without the one that ends the turn."""
    n_steps: int
    """Tokens that `elapsed_s` was spent on."""
    elapsed_s: float
    n_drafted: int | None = None
    """Drafted tokens that the model verified; None if the peer does not report them."""
    n_accepted: int | None = None
    n_rounds: int | None = None
    """Passes through the model; None if the peer does not report them."""

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed, None where nothing was timed."""
        return self.n_steps / self.elapsed_s if self.n_steps and self.elapsed_s > 0 else None


@dataclass(frozen=True, slots=True)
class Run:
    """One reply of one configuration, or why there is none."""

    pair: int
    set_name: str
    prompt: str
    temperature: float
    configuration: str
    """`peer mode`, as in the catalogue."""
    reply: Reply | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What a run is found by when a comparison goes on."""
        return (self.pair, self.set_name, self.prompt, self.temperature, self.configuration)


@dataclass(slots=True)
class Head:
    """How the runs of a file were made."""

    settings: dict[str, object]
    """What must not change within a file: model, tokens, threads, context, sets, seed."""
    machine: dict[str, str] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each peer its versions, or under `refused` why it cannot run."""
    configurations: list[dict[str, object]] = field(default_factory=list)
    command: str = ""


def open_results(path: Path, head: Head) -> list[Run]:
    """Write the head of a new file, or give the runs of one that was begun.

    Raises:
        PeerError: the file was begun with other settings.
    """
    if not path.exists() or not path.stat().st_size:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(head)) + "\n", encoding="utf-8")
        return []
    known, runs = read_results(path)
    different = [
        f"{name} {known.settings.get(name)!r}, now {value!r}"
        for name, value in head.settings.items()
        if known.settings.get(name) != value
    ]
    if different:
        raise PeerError(f"{path} was begun with {'; '.join(different)}: name another --out")
    lines = [json.dumps(asdict(joined(known, head))), *(line_of(run) for run in runs if run.reply)]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fresh.replace(path)
    return [run for run in runs if run.reply]


def joined(known: Head, head: Head) -> Head:
    """The head of a file that goes on: what was measured before stays named.

    A peer that answered before and is missing now keeps its versions.
    """
    new = {each["key"] for each in head.configurations}
    before = [each for each in known.configurations if each["key"] not in new]
    peers = known.peers | {
        name: versions
        for name, versions in head.peers.items()
        if "refused" not in versions or name not in known.peers
    }
    commands = dict.fromkeys([*known.command.split(NEXT_COMMAND), head.command])
    command = NEXT_COMMAND.join(filter(None, commands))
    return Head(head.settings, head.machine, peers, [*before, *head.configurations], command)


def append(path: Path, run: Run) -> None:
    """Add a run at once, so that an interrupted comparison can go on."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line_of(run) + "\n")


def line_of(run: Run) -> str:
    """A run as its line."""
    return json.dumps(asdict(run))


def read_results(path: Path) -> tuple[Head, list[Run]]:
    """Read a file; a last line that was cut short is left out.

    Raises:
        PeerError: it is no file of results.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return Head(**json.loads(lines[0])), list(_runs(lines[1:]))
    except (IndexError, TypeError, ValueError) as error:
        raise PeerError(f"{path} is no file that benchmarks/peers.py wrote: {error}") from error


def _runs(lines: list[str]) -> Iterator[Run]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise
        reply = row.pop("reply")
        yield Run(**row, reply=None if reply is None else reply_of(reply))


def reply_of(row: dict[str, object]) -> Reply:
    """Read a reply; names that are not known are an error."""
    known = {each.name for each in fields(Reply)}
    if unknown := set(row) - known:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    tokens = row["tokens"]
    assert isinstance(tokens, list)
    return Reply(**{**row, "tokens": tuple(tokens)})  # type: ignore[arg-type]  # checked above
