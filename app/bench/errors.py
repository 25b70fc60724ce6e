"""What can be wrong with a benchmark before it starts, or with a file of its results."""

from engine.errors import EngineError


class BenchError(EngineError):
    """A prompt set, a choice of policies, or a file of results that cannot be used."""

    title = "The benchmark cannot run"
