"""What a llama-server really allocated, read from its log, beside what was planned.

Read are the lines `... buffer size = 96.00 MiB` of llama.cpp 0c1e57098 with `-lv 4` and of builds
back to 2024, which printed them without being asked, the table `memory breakdown` that a server
prints before it loads and when it ends, and both as rows of `--log-jsonl`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from engine.errors import EngineError
from engine.files import open_file
from engine.memory.dry_run import KINDS, device_of
from engine.memory.estimate import Estimate, n_outputs
from engine.memory.terms import DeviceEstimate, TermKind
from engine.memory.units import MIB, BufferSize
from engine.parsing import parse_json

MAX_LINE = 64 * 1024
"""Characters that are read as one line: a prompt may stand in a log as one."""
MAX_TEXT = 512
"""Characters of a line that are looked at: those about memory have up to 200."""
MAX_FACTS = 4096
"""Buffers, devices and settings of one run: one on 16 GPUs tells of a hundred."""
MAX_CHARACTERS = 1 << 30
"""Of a log."""
MARKS = ("buffer size", "breakdown", "|", "draft model", "initializing", "build: ", "context")
"""A line without any of them says nothing that is looked for."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
BUFFER = re.compile(
    r"\b(?P<function>\w++):\s++(?P<device>\S++)\s++"
    r"(?:(?P<kind>model|KV|RS|compute|output|DSV4 \w+ state)\s+)?"
    r"buffer size\s*=\s*(?P<mib>\d{1,9}(?:\.\d{1,9})?)\s*MiB"
)
"""Builds before September 2024 print `CUDA0 buffer size` for weights; DeepSeek V4 keeps state for
its compressors."""
SETTING = re.compile(
    r"(?:llama_context|llama_new_context_with_model): (?P<name>\w+)\s*= (?P<value>\S+)"
)
TABLE_ROW = re.compile(
    r"\|\s+- (?P<name>\S+)(?: \((?P<description>.*)\))?\s*\|"
    r"(?:\s*(?P<total>\d{1,9}) =\s*(?P<free>\d{1,9}) \+ \()?"
    r"\s*\d+ =\s*(?P<model>\d{1,9}) \+\s*(?P<context>\d{1,9}) \+\s*(?P<compute>\d{1,9})"
)
NUMBER = re.compile(r"[0-9]{1,9}")
NEW_RUN = re.compile(r"llama_server: initializing|\bbuild: \d+|main: build = ")
NEW_CONTEXT = re.compile(r"constructing llama_context|llama_new_context_with_model: n_ctx ")
DRAFT = re.compile(r"loading draft model")
PROJECTOR = re.compile(r"clip|mtmd|compute_meta")
OWNERS = {"draft": TermKind.DRAFT, "projector": TermKind.PROJECTOR}
SETTINGS = {
    "n_ctx": "context",
    "n_seq_max": "slots",
    "n_ubatch": "micro-batch",
    "n_outputs_max": "rows of logits (slots times drafted tokens and one)",
}


class LogError(EngineError):
    """A log that cannot be read, or that says nothing about memory."""

    title = "The log is of no use"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A row of the memory breakdown, in bytes of whole MiB.

    Where several models run, the row is of the target alone.
    """

    name: str
    """`CUDA0`, `Host`, `CPU_REPACK` and so on."""
    description: str
    """Name of the card without its maker; empty for memory of the host."""
    model_bytes: int
    context_bytes: int
    """Cache and recurrent state."""
    compute_bytes: int
    total_bytes: int | None = None
    free_bytes: int | None = None
    is_loaded: bool = False
    """Whether the model was loaded when the row was printed; before, it is a projection."""

    @property
    def self_bytes(self) -> int:
        """Bytes that llama.cpp accounts for."""
        return self.model_bytes + self.context_bytes + self.compute_bytes

    @property
    def unaccounted_bytes(self) -> int | None:
        """Bytes in use beyond those: the driver's context and other programs."""
        if self.total_bytes is None or self.free_bytes is None or not self.is_loaded:
            return None
        return self.total_bytes - self.free_bytes - self.self_bytes


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The last run that a log tells of."""

    buffers: tuple[BufferSize, ...]
    """Exact to 0.005 MiB; none where the log has the breakdown alone."""
    devices: tuple[DeviceMemory, ...]
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the target's context by llama.cpp's names: `n_ctx`, `n_seq_max`, `n_ubatch`..."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One term of one device."""

    device: str
    kind: str
    """Value of a `TermKind`; `kv + state` where the log has them as one number."""
    planned_bytes: int
    measured_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Bytes planned too many; negative where too few."""
        return self.planned_bytes - self.measured_bytes


def read_server_log(path: Path) -> ServerLog:
    """What the last run in a log allocated.

    Raises:
        LogError: the file cannot be read, or no line of it tells of memory.
    """
    try:
        with open_file(path) as raw, TextIOWrapper(BufferedReader(raw), "utf-8", "replace") as file:
            log = parse_server_log(_lines(file))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
    if not log.buffers and not log.devices:
        raise LogError(
            f"{path} says nothing about memory: start llama-server with -lv 4 or --log-jsonl, and "
            "keep what it prints"
        )
    return log


def parse_server_log(lines: Iterable[str]) -> ServerLog:
    """What the last run in the lines of a log allocated.

    Raises:
        LogError: they are no text, or tell of more than any run has.
    """
    run = _Run()
    for line in lines:
        if not any(mark in line for mark in MARKS):
            continue
        row = _json_row(line) if line.startswith("{") else None
        if row is not None and row.get("type") == "fit_memory_breakdown":
            run.read_breakdown(row.get("data"))
            continue
        text = COLOR.sub("", line[:MAX_TEXT]) if row is None else str(row.get("msg"))[:MAX_TEXT]
        if NEW_RUN.search(text) and run.has_buffers:
            run = _Run()
        run.read(text)
    return run.log()


def compare_log(planned: Estimate, log: ServerLog) -> tuple[Compared, ...]:
    """Every term that was planned or measured, in the order of devices and terms.

    GPUs are matched by their number, everything in main memory with the CPU. Overhead is in no
    log and left out.
    """
    if not log.buffers:
        return _by_rows(planned, log)
    measured = measured_bytes(log.buffers, planned.devices)
    names = dict.fromkeys([*(d.device.name for d in planned.devices), *(n for n, _ in measured)])
    by_name = {device.device.name: device for device in planned.devices}
    found = (
        Compared(name, kind.value, _planned(by_name.get(name), kind), measured.get((name, kind), 0))
        for name in names
        for kind in TermKind
        if kind is not TermKind.OVERHEAD
    )
    return tuple(row for row in found if row.planned_bytes or row.measured_bytes)


def measured_bytes(
    buffers: Iterable[BufferSize], devices: Sequence[DeviceEstimate]
) -> dict[tuple[str, TermKind], int]:
    """What buffers hold of each device and part, counted as a plan counts it.

    Mapped pages whose weights lie elsewhere too are left out, as they are in the plan's weights:
    the system may take them back. A device that the plan has not keeps llama.cpp's name.
    """
    found: dict[tuple[str, TermKind], int] = defaultdict(int)
    mapped = set()
    for buffer in buffers:
        kind = OWNERS.get(buffer.owner) or KINDS.get(buffer.kind)
        if kind is not None:
            name = device_of(buffer, devices) or buffer.device
            found[name, kind] += buffer.nbytes
            if buffer.is_mapped:
                mapped.add((name, kind))
    for device in devices:
        for kind, weights in device.mapped.items():
            if (device.device.name, kind) in mapped:
                found[device.device.name, kind] -= weights.reclaimable
    return dict(found)


def settings_that_differ(planned: Estimate, log: ServerLog) -> tuple[str, ...]:
    """Where the log is of another configuration than the one that is planned."""
    configuration = planned.configuration
    wanted = {
        "n_ctx": planned.n_ctx,
        "n_seq_max": configuration.n_slots,
        "n_ubatch": min(configuration.n_ubatch, configuration.n_batch),
        "n_outputs_max": n_outputs(configuration, planned.target),
    }
    return tuple(
        f"{SETTINGS[name]} is {value} in the plan, but {log.settings[name]} in the log"
        for name, value in wanted.items()
        if log.settings.get(name, str(value)) != str(value)
    )


def _lines(file: TextIOWrapper) -> Iterator[str]:
    n_left = MAX_CHARACTERS
    while line := file.readline(MAX_LINE):
        n_left -= len(line)
        if n_left < 0:
            raise LogError("the log has more than 1 GiB: cut it to the run that is asked about")
        if "\0" in line:
            raise LogError("the log is no text: give what llama-server printed")
        yield line


def _json_row(line: str) -> dict[str, object] | None:
    """A row of `--log-jsonl`; None for a line that was cut off, or text with a brace."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class _Run:
    """What the log says of one run so far.

    A context prints its compute buffers again whenever it lays its graph out anew, so the last ones
    count; caches and weights of several devices or kinds add up.
    """

    def __init__(self) -> None:
        self._kept: list[BufferSize] = []
        self._graphs: dict[tuple[int, str], BufferSize] = {}
        self._n_contexts = 0
        self._owner = "target"
        self._rows: dict[str, DeviceMemory] = {}
        self._settings: dict[str, str] = {}

    @property
    def has_buffers(self) -> bool:
        """Whether the log named a buffer."""
        return bool(self._kept or self._graphs)

    def read(self, text: str) -> None:
        """Take in one line, or the message of one row."""
        if DRAFT.search(text):
            self._owner = "draft"
        elif buffer := BUFFER.search(text):
            self._add(buffer)
        elif row := TABLE_ROW.match(text, max(0, text.find("|"))):
            self._add_row(row.groupdict(default=""))
        elif (setting := SETTING.search(text)) and self._owner == "target":
            self._settings.setdefault(setting["name"], setting["value"])
        if NEW_CONTEXT.search(text):
            self._n_contexts += 1
        self._check_size()

    def read_breakdown(self, data: object) -> None:
        """Take in the rows of a `fit_memory_breakdown`; what is no such row is passed over."""
        rows = data.get("rows") if isinstance(data, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and {"name", "model", "context", "compute"} <= row.keys():
                self._add_row({str(name): str(value) for name, value in row.items()})
        self._check_size()

    def _check_size(self) -> None:
        facts = (self._kept, self._graphs, self._rows, self._settings)
        if sum(map(len, facts)) > MAX_FACTS:
            raise LogError(f"the log tells of more than {MAX_FACTS:,} buffers in one run")

    def log(self) -> ServerLog:
        """What the lines read so far say."""
        buffers = (*self._kept, *self._graphs.values())
        return ServerLog(buffers, tuple(self._rows.values()), self._settings)

    def _add(self, match: re.Match[str]) -> None:
        owner = "projector" if PROJECTOR.search(match["function"]) else self._owner
        kind, nbytes = match["kind"] or "model", round(float(match["mib"]) * MIB)
        kind = "RS" if kind.startswith("DSV4") else kind
        buffer = BufferSize(match["device"], kind, nbytes, owner)
        if kind == "compute":
            self._graphs[self._n_contexts, f"{owner} {buffer.device}"] = buffer
        else:
            self._kept.append(buffer)

    def _add_row(self, row: dict[str, str]) -> None:
        def size(name: str) -> int | None:
            text = row.get(name, "")
            return int(text) * MIB if NUMBER.fullmatch(text) else None

        self._rows[row["name"]] = DeviceMemory(
            name=row["name"],
            description=row.get("description", ""),
            model_bytes=size("model") or 0,
            context_bytes=size("context") or 0,
            compute_bytes=size("compute") or 0,
            total_bytes=size("total"),
            free_bytes=size("free"),
            is_loaded=bool(self._graphs),
        )


def _planned(device: DeviceEstimate | None, kind: TermKind) -> int:
    return 0 if device is None else device.term(kind).nbytes


def _by_rows(planned: Estimate, log: ServerLog) -> tuple[Compared, ...]:
    measured: dict[tuple[str, str], int] = defaultdict(int)
    for row in log.devices:
        name = "CPU" if row.name == "Host" else row.name
        device = device_of(BufferSize(name, "model", 0), planned.devices) or row.name
        measured[device, "weights"] += row.model_bytes
        measured[device, "kv + state"] += row.context_bytes
        measured[device, "compute"] += row.compute_bytes
    by_name = {device.device.name: device for device in planned.devices}
    parts = {
        "weights": (TermKind.WEIGHTS,),
        "kv + state": (TermKind.KV, TermKind.STATE),
        "compute": (TermKind.COMPUTE,),
    }
    return tuple(
        Compared(name, part, sum(_planned(by_name.get(name), k) for k in parts[part]), nbytes)
        for (name, part), nbytes in measured.items()
        if nbytes or any(_planned(by_name.get(name), k) for k in parts[part])
    )
