"""The planner with this user's models, settings and measurements."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from app import paths
from app.config import Settings
from engine.builds import installed_build
from engine.configuration import Configuration, KVTypes
from engine.events import BufferSize
from engine.memory.bandwidth import Bandwidths
from engine.memory.hardware import find_gpus, this_processor, usable_devices
from engine.model.architecture import Model, read_model
from engine.model.identity import identity_of
from engine.model.ollama import model_name
from engine.model.speeds import ModelSpeed, Speeds
from engine.planning.cache_types import kinds_for
from engine.planning.planner import ModelSources, Planner
from engine.planning.resolve import AUTO_N_CTX, NO_PROJECTOR
from engine.planning.values import thread_rules
from engine.policy.choice import TypeRequest, has_verdict
from engine.policy.explain import explain
from engine.policy.gates import PolicySettings
from engine.policy.known import Known
from engine.policy.plans import PlanStore, is_due, measured_at
from engine.presets.preset import Preset, SamplingRules
from engine.quality.records import Report

MAX_DEVICE_LENGTH = 100
"""Letters of a device's name in a report."""


def user_planner(*, loaded: tuple[BufferSize, ...] = (), remembers: bool = False) -> Planner:
    """A planner that finds the user's models by name and uses their measurements.

    Args:
        loaded: Buffers of the loaded model, which loading another model would free.
        remembers: Whether estimates are cached, for a screen with a table.
    """
    return Planner(
        sources=ModelSources(_model_folders, paths.remote_headers_dir()),
        loaded=loaded,
        speeds=partial(_speed, user_speeds()),
        bandwidths=user_bandwidths().of,
        quality=_quality,
        remembers=remembers,
    )


def with_settings(rules: Preset | None, settings: Settings) -> Preset:
    """A preset completed by the settings; without a preset, the settings alone."""
    engine, cache = settings.engine, settings.cache
    if rules is None:
        rules = Preset.model_construct(
            {"n_ctx", "n_slots"},  # a draft model that is named may change the predictor
            name="default",
            n_ctx=engine.n_ctx,
            n_slots=cache.slots,
            speculation=settings.speculation.speculation(),
            sampling=SamplingRules(**asdict(settings.chat.sampling())),
        )
    changed: dict[str, object] = {}
    if "n_threads" not in rules.model_fields_set:
        changed |= thread_rules(engine.n_threads)
    if engine.projector == "off" and rules.mmproj is None:
        changed["mmproj"] = NO_PROJECTOR
    if not engine.use_extra_buffers:
        changed["use_extra_buffers"] = False
    return rules.model_copy(update=changed)


def user_speeds() -> Speeds:
    """Speeds of this user's models, measured by `tune`, `bench` and chats."""
    return Speeds(paths.speeds_path(), speeds_of_chats)


@cache
def user_bandwidths() -> Bandwidths:
    """Bandwidth of this machine's memory, measured once."""
    return Bandwidths(paths.bandwidths_path())


def _speed(speeds: Speeds, model: Model) -> ModelSpeed | None:
    """Measured speed of a model; None if the model is not on this machine."""
    if model.file.origin is not None or not model.file.path.is_file():
        return None
    return speeds.of(identity_of(model.file), model_name(model.file.path))


def speeds_of_chats() -> Mapping[str, ModelSpeed]:
    """Speeds of replies in chats; empty if the chats cannot be read, which the chat reports."""
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
    from app.config import load_settings

    return known_quality(model, load_settings().settings.cache_policy)


def _model_folders() -> tuple[Path, ...]:
    from app.config import model_folders  # with the first model that is named without a folder

    return model_folders()


def known_quality(model: Model, policy: PolicySettings) -> Known:
    """Measured quality of K/V types with this model and the installed llama.cpp build.

    The newest measurement with a verdict is used, whatever its texts; its speeds are used only on
    the machine where they were measured.
    """
    store = PlanStore(paths.cache_plans_dir())
    guessed = Known(
        gates=policy,
        has_key_biases=any(each.name.endswith("attn_k.bias") for each in model.file.tensors),
    )
    if not store.folder.is_dir() or model.file.origin is not None or not model.file.path.is_file():
        return guessed
    found = store.find(identity_of(model.file), installed_build())
    if not found.plans:
        return replace(guessed, notes=found.problems)
    plan = next((e for e in found.plans if has_verdict(e)), found.plans[0])
    return Known(
        plan,
        policy,
        has_rates=plan.subject.device in _devices_here(),
        notes=(*found.problems, *_due(plan, model.file.path, policy)),
    )


def save_verdict(
    report: Report, configuration: Configuration, policy: PolicySettings
) -> tuple[KVTypes, str] | None:
    """Save a measurement as a plan; return the best cache types for a usual chat and why."""
    if not has_verdict(report) or not any(row.is_complete for row in report.candidates):
        return None
    report = PlanStore(paths.cache_plans_dir()).save(report)
    model, known = read_model(configuration.model_path), Known(report, policy, has_rates=True)
    n_ctx = min(model.architecture.n_ctx_train, AUTO_N_CTX)
    usual = replace(configuration, n_ctx=n_ctx, n_slots=1)
    pair = kinds_for(TypeRequest(n_ctx), usual, model, usable_devices(), "kvchat", known)[0].pair
    return pair, explain(known, pair)


def _due(plan: Report, model_path: Path, policy: PolicySettings) -> tuple[str, ...]:
    now = datetime.now(UTC)
    if not is_due(plan, now, policy.probe_days):
        return ()
    command = f"kvchat cache-quality {shlex.quote(str(model_path))}"
    return (
        f"the K/V types were measured {(now - measured_at(plan)).days} days ago: run "
        f"`{command}` to repeat "
        "the measurement",
    )


def _devices_here() -> tuple[str, str]:
    """This machine as reports name it: without its GPUs, and with them."""
    processor = this_processor().name
    both = ", ".join((processor, *(gpu.name for gpu in find_gpus())))
    return processor[:MAX_DEVICE_LENGTH].strip(), both[:MAX_DEVICE_LENGTH].strip()
