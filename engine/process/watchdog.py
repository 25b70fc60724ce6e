"""How a process is started, why it hung or ended, and what the next one must do without."""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
    """A log that can be written, and why it is another one than asked for; empty where it is not.

    Where the folder takes no file, as on a system that is read-only, it is a temporary file, and
    where there can be none the log goes nowhere: no reply needs it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        why = f"the log {path} cannot be written ({error.strerror})"
    else:
        return path, ""
    try:
        handle, name = tempfile.mkstemp(prefix="kvchat-", suffix=".log")
    except OSError:
        return Path(os.devnull), f"{why}: the engine's log is lost"
    os.close(handle)
    return Path(name), f"{why}: the engine logs to {name}"


def start(
    command: Sequence[str],
    log_path: Path,
    *,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """A process in a session of its own; its output goes behind what a log holds.

    Args:
        command: The program and its arguments.
        log_path: Takes its output.
        pass_fds: File descriptors that it has as well.
        environment: Its variables; None is those of this process.

    Raises:
        OSError: it cannot be started, or its log not be written.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        if log_path.is_file():  # not the device where logs go nowhere
            os.chmod(log_path, 0o600)  # noqa: PTH101  what a chat says can be in a crash report
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
    """A process that finds the number of its end of a pipe behind its command, and ours.

    Raises:
        OSError: as `start`.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        popen = start([*command, str(fd)], log_path, pass_fds=(fd,))
        return popen, Connection(ours.detach())


def is_native_crash(exit_code: int) -> bool:
    """Whether native code ended the process."""
    return exit_code < 0 and -exit_code in NATIVE_FAULTS


def describe_exit(exit_code: int) -> str:
    """Why a process ended, in words, from the exit code of `subprocess`."""
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    try:
        number = signal.Signals(-exit_code)
    except ValueError:
        return f"it was ended by signal {-exit_code}"
    return CAUSES.get(number, f"it was ended by {number.name}")
