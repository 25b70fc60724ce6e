"""The errors that the engine raises; more specific ones are defined next to their code.

Messages are written for the user: the fact, the request, what to change.
"""

MAX_SHOWN = 80
"""Maximum characters of a foreign text in a message."""


def shown(value: object) -> str:
    """Quote a value for a message, shortened to `MAX_SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


class EngineError(Exception):
    """Base class; `str(error)` is a message for the user."""

    title = "Engine error"


class ModelFileError(EngineError):
    """A GGUF file cannot be read; the message has the byte offset and the reason."""

    title = "The model file cannot be read"


class ModelLoadError(EngineError):
    """The backend cannot load the model or create the context."""

    title = "The model could not be loaded"


class AdapterError(ModelLoadError):
    """A low-rank adapter is missing or does not fit the loaded model."""

    title = "The adapter cannot be used"


class DecodeError(EngineError):
    """A decode failed inside the backend."""

    title = "Decoding failed"


class LogitsError(DecodeError):
    """The logits are NaN or infinite, usually because the weights are damaged."""

    title = "The model's weights are damaged"


class DecodeAborted(EngineError):  # noqa: N818  a requested outcome, not a fault
    """A decode was stopped by `Backend.abort`."""

    title = "Stopped"


class CropUnsupportedError(EngineError):
    """The cache cannot be truncated to the requested length; it is unchanged."""

    title = "The cache cannot be truncated"


class StateError(EngineError):
    """A saved state is damaged or does not fit the backend."""

    title = "The saved state cannot be used"


class CacheStoreError(EngineError):
    """The folder of saved states cannot be read or written."""

    title = "The cache on disk cannot be used"


class CacheBudgetError(EngineError):
    """The states to save exceed the budget of the cache."""

    title = "The cache budget is too small"


class ContextFullError(EngineError):
    """The tokens do not fit into the context."""

    title = "The context is full"


class TokenError(EngineError):
    """A token id is not in the model's vocabulary."""

    title = "Unknown token"


class TemplateError(EngineError):
    """The chat template failed, ran too long, or violated the sandbox."""

    title = "The chat template failed"


class IncompatiblePairError(EngineError):
    """A draft model cannot draft for its target; the message has the difference."""

    title = "The draft model does not fit"


class PredictorError(EngineError):
    """A predictor raised, proposed invalid tokens, took too long or is missing."""

    title = "The predictor failed"


class PresetError(EngineError):
    """A preset or a configuration has bad keys or values; the message lists all."""

    title = "These settings cannot be used"


class PresetFileError(PresetError):
    """A preset is missing, invalid, or cannot be written; the message has its name or file."""

    title = "The preset cannot be used"


class HardwareError(EngineError):
    """A device does not exist, or a size is invalid."""

    title = "The device cannot be used"


class InstallError(EngineError):
    """The starter model could not be fetched or did not match its checksum."""

    title = "The starter model could not be installed"


class ServerError(EngineError):
    """A server cannot be reached, refuses a request, or sends an invalid reply."""

    title = "The server failed"


class WorkerError(EngineError):
    """The engine's process died, hung or could not be started."""

    title = "The engine stopped"
