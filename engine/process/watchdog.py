"""Start processes with a log and describe how they ended."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.files import reason_of

NATIVE_FAULTS = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)
CAUSES = {
    signal.SIGSEGV: "it accessed invalid memory (SIGSEGV)",
    signal.SIGILL: "it used an instruction that this processor lacks (SIGILL)",
    signal.SIGBUS: "it read past the end of a mapped file (SIGBUS)",
    signal.SIGABRT: "llama.cpp aborted on a failed assertion (SIGABRT)",
    signal.SIGFPE: "it crashed in an arithmetic operation (SIGFPE)",
    signal.SIGKILL: "it was killed (SIGKILL), perhaps because memory ran out",
    signal.SIGTERM: "it was terminated (SIGTERM)",
}


def writable_log(path: Path) -> tuple[Path, str]:
    """A log path and an empty text; the null device and the reason if `path` cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        why = f"the log {path} cannot be written ({reason_of(error)}): make its folder writable"
        return Path(os.devnull), why
    return path, ""


def start(
    command: Sequence[str],
    log_path: Path,
    *,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a process in a new session; its output is appended to a log.

    Args:
        command: The program and its arguments.
        log_path: Log of its output.
        pass_fds: File descriptors that it inherits.
        environment: Its environment variables; None inherits those of this process.

    Raises:
        OSError: the process cannot be started, or the log cannot be written.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        if log_path.is_file():  # not the null device
            os.chmod(log_path, 0o600)  # noqa: PTH101  a crash report can hold text of a chat
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            env=environment,
            start_new_session=True,
        )


def start_piped(
    command: Sequence[str], log_path: Path
) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """Start a process with a pipe; return it and our end of the pipe.

    The file descriptor of the process's end is its last argument.

    Raises:
        OSError: as `start`.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        popen = start([*command, str(fd)], log_path, pass_fds=(fd,))
        return popen, Connection(ours.detach())


def is_native_crash(exit_code: int) -> bool:
    """Whether the exit code is that of a fault in native code."""
    return exit_code < 0 and -exit_code in NATIVE_FAULTS


def describe_exit(exit_code: int) -> str:
    """Message for the exit code of a `subprocess`, negative for a signal."""
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    try:
        number = signal.Signals(-exit_code)
    except ValueError:
        return f"it was ended by signal {-exit_code}"
    return CAUSES.get(number, f"it was ended by {number.name}")
