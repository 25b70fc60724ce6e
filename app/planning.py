"""The planner of this user: their models, how fast they are, and what logs say of their cards."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from app import paths
from engine.events import BufferSize
from engine.memory.bandwidth import Bandwidths
from engine.memory.calibration import read_calibrations
from engine.model.architecture import Model
from engine.model.identity import identity_of
from engine.model.ollama import model_name
from engine.model.speeds import ModelSpeed, Speeds
from engine.planning.planner import ModelSources, Planner
from engine.policy.known import Known


def user_planner(*, loaded: tuple[BufferSize, ...] = (), remembers: bool = False) -> Planner:
    """A planner that finds the user's models by name and knows what logs taught about cards.

    Args:
        loaded: What this process's engine has allocated: another load would free it.
        remembers: Whether estimates are kept, for a screen with a table.
    """
    return Planner(
        sources=ModelSources(_model_folders, paths.remote_headers_dir()),
        loaded=loaded,
        calibrations=partial(read_calibrations, paths.calibration_path()),
        speeds=partial(_speed, user_speeds()),
        bandwidths=user_bandwidths().of,
        quality=_quality,
        remembers=remembers,
    )


def user_speeds() -> Speeds:
    """What tune, benchmarks and chats measured of this user's models."""
    return Speeds(paths.speeds_path(), _speeds_of_chats)


@cache
def user_bandwidths() -> Bandwidths:
    """How fast this machine's memory is read, kept from the first question on."""
    return Bandwidths(paths.bandwidths_path())


def _speed(speeds: Speeds, model: Model) -> ModelSpeed | None:
    """What was measured of a model; None for one that is not on this machine."""
    if model.file.origin is not None or not model.file.path.is_file():
        return None
    return speeds.of(identity_of(model.file), model_name(model.file.path))


def _speeds_of_chats() -> Mapping[str, ModelSpeed]:
    """What replies in chats took; nothing where the chats cannot be read, which they say."""
    from app.store.chats import ChatStore  # not needed where a model was tuned
    from app.store.errors import StoreError

    if not paths.database_path().is_file():
        return {}
    try:
        with ChatStore(paths.database_path()) as store:
            return store.model_speeds()
    except StoreError:
        return {}


def _quality(model: Model) -> Known:
    from app.cache_plans import known_quality
    from app.config import load_settings

    return known_quality(model, load_settings().settings.cache_policy)


def _model_folders() -> tuple[Path, ...]:
    from app.config import model_folders  # with the first model that is named without a folder

    return model_folders()
