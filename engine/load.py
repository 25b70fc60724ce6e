"""Create sessions and laboratories from a configuration; imports the concrete classes."""

from dataclasses import dataclass, replace
from typing import Literal

from engine.backends import TORCH_MISSING
from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.clock import Stopwatch
from engine.configuration import Configuration, PredictorName
from engine.contexts import LlamaCppContexts, TorchContexts
from engine.errors import EngineError, ModelFileError, ModelLoadError
from engine.events import Loaded
from engine.generation.session import Session
from engine.generation.threads import Threads
from engine.model.chat_template import ChatTemplate
from engine.model.gguf import GgufFile, read_gguf
from engine.model.identity import ModelKind, check_is_no_head, kind_of
from engine.planning.draft_advice import check_draft
from engine.quality.laboratory import Laboratory
from engine.quality.request import LaboratoryRequest, laboratory_of
from engine.speculation.costs import CostProfile


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session after a trial decode, with its `Loaded` event."""

    session: Session
    loaded: Loaded
    target: Backend


def load_session(
    configuration: Configuration,
    costs: CostProfile | None = None,
) -> LoadedSession:
    """Open the models of a configuration and decode a few tokens as a trial.

    A badly built llama.cpp crashes at its first decode; the trial makes that a crash while loading,
    which the client handles with a fallback. `costs` come from an earlier run.

    Raises:
        ModelLoadError: the backend cannot load a model or context, or is not installed.
        IncompatiblePairError: the draft model does not fit the target.
        TemplateError: the model's chat template is not valid.
    """
    watch, log = Stopwatch(), NativeLog()
    notes = _cells_notes(configuration)
    configuration = replace(configuration, kv_unified=False)
    warning, projector = check_draft(configuration), configuration.mmproj_path
    is_there = projector is not None and projector.is_file()
    if projector and is_there and (kind := kind_of(read_gguf(projector))) != ModelKind.PROJECTOR:
        raise ModelFileError(f"{projector.name} is not a projector: its header declares {kind}")
    opened: list[Backend] = []
    try:
        target = _open_backend(configuration, log, "target")
        opened.append(target)
        draft: Backend | None = None
        own = configuration.of_draft("kvchat")
        if own is not None:
            check_is_no_head(own.model_path)
            draft = _open_backend(own, log, "draft")
            opened.append(draft)
        is_open = configuration.n_threads is None
        follows = is_open, is_open and configuration.n_threads_batch is None
        threads = Threads(tuple(opened), follows=follows)
        threads.begin()
        for backend in opened:
            backend.warm_up()
        file, vocabulary = read_gguf(configuration.model_path), target.vocabulary
        bos, eos = (
            "" if token is None else vocabulary.text(token).decode("utf-8", "replace")
            for token in (vocabulary.bos, vocabulary.eos)
        )
        session = Session(
            target,
            ChatTemplate(file.chat_template, bos=bos, eos=eos),
            configuration.speculation,
            draft_backend=draft,
            costs=costs,
            threads=threads,
        )
    except EngineError:
        for backend in opened:
            backend.close()
        raise
    loaded = Loaded(
        model_name=file.text("general.name") or configuration.model_path.stem,
        file_type=file.file_type,
        n_vocab=target.vocabulary.n_tokens,
        n_ctx=target.n_ctx,
        n_ctx_train=_n_ctx_train(file, target),
        can_crop=target.can_crop,
        has_chat_template=file.chat_template is not None,
        vocabulary_id=target.vocabulary.identifier,
        configuration=configuration,
        predictors=session.predictors,
        buffers=target.buffers + (draft.buffers if draft is not None else ()),
        notes=tuple(notes + _notes(configuration, target, file) + ([warning] if warning else [])),
        elapsed_s=watch.total(),
        n_threads=target.n_threads,
        blindness=target.vocabulary.no_images,
    )
    return LoadedSession(session, loaded, target)


def open_laboratory(request: LaboratoryRequest) -> Laboratory:
    """Prepare a measurement of cache types; closing it frees the model.

    Raises:
        EngineError: as `laboratory_of`.
    """
    is_torch = request.configuration.backend == "torch"
    return laboratory_of(request, TorchContexts if is_torch else LlamaCppContexts)


def _open_backend(
    configuration: Configuration, log: NativeLog, role: Literal["target", "draft"]
) -> Backend:
    if configuration.backend == "llama.cpp":
        _check_not_torch(configuration)
        return LlamaCppBackend(configuration, log, role)
    try:
        from engine.backends.torch.backend import TorchBackend  # takes a second or two
    except ImportError as error:
        raise ModelLoadError(TORCH_MISSING.format(reason=error)) from error
    return TorchBackend(configuration, log, role)


def _check_not_torch(configuration: Configuration) -> None:
    """Raise `ModelLoadError` for settings that llama.cpp in kvchat does not support."""
    if configuration.rpc_workers:
        raise ModelLoadError(
            f"rpc_workers is set to {', '.join(configuration.rpc_workers)}, but only "
            "llama-server uses RPC workers: use `kvchat serve`, or remove "
            "rpc_workers"
        )
    if configuration.kv_cache is not None:
        raise ModelLoadError(
            f"the cache type {configuration.kv_cache} belongs to the torch backend: add "
            "--backend torch, or choose a llama.cpp type with --kv"
        )
    compiled = None if configuration.compile == "off" else configuration.compile
    for what, value in (
        ("compile", compiled),
        ("the decode plan", configuration.decode_plan),
        ("kv_trace", configuration.kv_trace),
    ):
        if value is not None:
            raise ModelLoadError(
                f"{what} is {value}, which needs the torch backend: add --backend torch, or "
                f"remove {what}"
            )


def _n_ctx_train(file: GgufFile, target: Backend) -> int:
    return file.integer(f"{file.architecture}.context_length") or target.n_ctx


def _cells_notes(configuration: Configuration) -> list[str]:
    n_slots = configuration.n_slots
    if not configuration.kv_unified or n_slots == 1:
        return []
    return [
        f"kv_unified affects only llama-server: in kvchat, each of the {n_slots} slots has its "
        f"own {configuration.n_ctx // n_slots} tokens of context"
    ]


def _notes(configuration: Configuration, target: Backend, file: GgufFile) -> list[str]:
    notes = [*target.notes]
    n_wanted = configuration.n_ctx // configuration.n_slots
    if target.n_ctx != n_wanted:
        each = "the context has" if configuration.n_slots == 1 else "each slot has"
        notes.append(
            f"{each} {target.n_ctx} tokens, but {n_wanted} were requested: llama.cpp rounds "
            "up to a multiple of 256"
        )
    if file.chat_template is None:
        notes.append(
            "this model has no chat template, so it is probably not a chat "
            "model: a plain User/Assistant transcript is used"
        )
    if target.n_ctx > _n_ctx_train(file, target):
        notes.append(
            f"the context of {target.n_ctx} exceeds the training context of "
            f"{_n_ctx_train(file, target)} tokens: replies get worse beyond that length"
        )
    if configuration.decode_plan is not None:
        has_window = not configuration.decode_plan.isdecimal()
        effect = (
            "attention sees only a window of tokens, so the text can differ from normal decoding"
        )
        notes.append(
            f"the decode plan {configuration.decode_plan} is on: "
            f"{effect if has_window else 'it saves memory and does not change the text'}"
        )
    wants_speculation = configuration.speculation.predictor is not PredictorName.OFF
    if wants_speculation and not target.can_crop:
        notes.append(
            "speculation is off: the state of a recurrent model cannot be rolled back "
            "after a rejected token"
        )
    return notes
