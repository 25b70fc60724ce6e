"""What the exit code of a process says."""

import signal

NATIVE_FAULTS = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)

CAUSES = {
    signal.SIGSEGV: "it read memory that is not its own (SIGSEGV)",
    signal.SIGILL: "it used an instruction that this processor lacks (SIGILL)",
    signal.SIGBUS: "it read a part of a file that is not there (SIGBUS)",
    signal.SIGABRT: "llama.cpp gave up on a failed assertion (SIGABRT)",
    signal.SIGFPE: "it made an arithmetic error (SIGFPE)",
    signal.SIGKILL: "it was killed (SIGKILL), by someone or because memory ran out",
    signal.SIGTERM: "it was told to end (SIGTERM)",
}


def is_native_crash(exit_code: int) -> bool:
    """Whether native code ended the process."""
    return exit_code < 0 and -exit_code in NATIVE_FAULTS


def describe_exit(exit_code: int) -> str:
    """Say in words why a process ended, from the exit code of `subprocess`."""
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    try:
        number = signal.Signals(-exit_code)
    except ValueError:
        return f"it was ended by signal {-exit_code}"
    return CAUSES.get(number, f"it was ended by {number.name}")
