"""The errors that the engine raises on purpose, as one tree; narrower ones lie where they arise.

Messages are fit for the user: what is, what was asked, what to change.
"""

MOST_SHOWN = 80
"""Characters of what others wrote that a message repeats."""


def shown(value: object) -> str:
    """A value as a message repeats it: quoted, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


class EngineError(Exception):
    """Root of the tree; `str(error)` is a sentence for the user."""

    title = "Engine error"


class ModelFileError(EngineError):
    """A GGUF file that cannot be read: names the byte offset and the reason."""

    title = "The model file cannot be read"


class ModelLoadError(EngineError):
    """llama.cpp refused the model or the context."""

    title = "The model could not be loaded"


class AdapterError(ModelLoadError):
    """A low-rank adapter that is missing, or that is none of the loaded model's."""

    title = "The adapter cannot be used"


class DecodeError(EngineError):
    """A decode failed inside the backend."""

    title = "Decoding failed"


class LogitsError(DecodeError):
    """The model gives no numbers for its next token, as damaged weights make it."""

    title = "The model's weights are damaged"


class DecodeAborted(EngineError):  # noqa: N818  an outcome that was asked for, not a fault
    """A decode was stopped by `Backend.abort`."""

    title = "Stopped"


class CropUnsupportedError(EngineError):
    """The cache cannot be truncated to the asked length; it is unchanged."""

    title = "The cache cannot be truncated"


class StateError(EngineError):
    """A saved state that is damaged, or that the backend refuses."""

    title = "The saved state cannot be used"


class CacheStoreError(EngineError):
    """The folder of saved states cannot be read or written."""

    title = "The cache on disk cannot be used"


class CacheBudgetError(EngineError):
    """More was asked to be kept than the cache may hold."""

    title = "The cache is too small"


class ContextFullError(EngineError):
    """More tokens than the context has cells."""

    title = "The context is full"


class TokenError(EngineError):
    """A token id that the model's vocabulary does not have."""

    title = "Unknown token"


class TemplateError(EngineError):
    """The chat template failed, ran too long, or reached for what the sandbox forbids."""

    title = "The chat template failed"


class IncompatiblePairError(EngineError):
    """A draft model that cannot draft for its target: the message says where they differ."""

    title = "The draft model does not fit"


class PredictorError(EngineError):
    """A predictor broke its promise: it raised, proposed garbage, answered late or is not there."""

    title = "The predictor failed"


class PresetError(EngineError):
    """A preset or a configuration with bad keys or values; all of them are named at once."""

    title = "These settings cannot be used"


class PresetFileError(PresetError):
    """A preset that is not there, is not valid, or cannot be written, by its name or its file."""

    title = "The preset cannot be used"


class HardwareError(EngineError):
    """A device that is not there, or a size that is none."""

    title = "The device cannot be used"


class InstallError(EngineError):
    """The starter model could not be fetched or did not match its checksum."""

    title = "The starter model could not be installed"


class ServerError(EngineError):
    """A server that is not there, refuses what it is asked, or sends what is no reply."""

    title = "The server failed"


class WorkerError(EngineError):
    """The engine's process died, hung or could not be started."""

    title = "The engine stopped"
