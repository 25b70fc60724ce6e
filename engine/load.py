"""Configuration to session: the one module that names concrete classes."""

from dataclasses import dataclass, replace

from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import ContextSettings, LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.placement import placement_of
from engine.configuration import Configuration, PredictorName
from engine.errors import EngineError
from engine.events import Loaded
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.speculation.cost import Stopwatch
from engine.speculation.pairs import check_draft, check_is_no_head
from engine.speculation.predictors.guard import Barred
from engine.speculation.profile import CostProfile


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session that has decoded something once, and what to tell about it."""

    session: Session
    loaded: Loaded
    target: Backend


def load_session(
    configuration: Configuration,
    barred: Barred | None = None,
    costs: CostProfile | None = None,
) -> LoadedSession:
    """Open the models of a configuration and decode a few tokens as a trial.

    A `barred` predictor is left off, whatever is asked for; `costs` are those of an earlier run.

    A badly built llama.cpp crashes at its first decode; here that happens while loading, where the
    process that watches knows what to try next.

    Raises:
        ModelLoadError: llama.cpp refused a model or a context.
        IncompatiblePairError: the draft does not fit its target.
        TemplateError: the model's chat template is not valid.
    """
    watch, log = Stopwatch(), NativeLog()
    warning = check_draft(configuration)
    opened: list[LlamaCppBackend] = []
    try:
        target = LlamaCppBackend(target_settings(configuration), log)
        opened.append(target)
        draft = None
        if configuration.draft is not None:
            check_is_no_head(configuration.draft.model_path)
            draft = LlamaCppBackend(draft_settings(configuration), log)
            opened.append(draft)
        for backend in opened:
            backend.try_out()
        session = Session(
            target,
            _template(target),
            configuration.speculation,
            draft_backend=draft,
            barred=barred,
            costs=costs,
            n_ctx_train=target.n_ctx_train,
        )
    except EngineError:
        for backend in opened:
            backend.close()
        raise
    loaded = _loaded(configuration, session, target, draft, watch)
    said = (warning, None if barred is None else barred.reason)
    notes = (*loaded.notes, *(note for note in said if note is not None))
    return LoadedSession(session, replace(loaded, notes=notes), target)


def target_settings(configuration: Configuration) -> ContextSettings:
    """Give what the target's context is opened with; rows for the longest draft and one more.

    A batch holds those rows even where micro-batches are smaller: llama.cpp ends the process when
    it is given more tokens than `n_batch`.
    """
    return ContextSettings(
        placement=placement_of(configuration),
        n_ctx=configuration.n_ctx,
        n_batch=max(configuration.n_rows, min(configuration.n_batch, configuration.n_ubatch)),
        n_ubatch=configuration.n_ubatch,
        type_k=configuration.type_k,
        type_v=configuration.type_v,
        flash_attention=configuration.flash_attention,
        n_threads=configuration.n_threads,
        offload_kqv=configuration.offload_kqv,
        swa_full=configuration.swa_full,
        use_extra_buffers=configuration.use_extra_buffers,
        lora_paths=configuration.lora_paths,
        n_rows=configuration.n_rows,
        n_sequences=configuration.n_slots,
        kv_unified=configuration.kv_unified,
    )


def draft_settings(configuration: Configuration) -> ContextSettings:
    """Give what the draft's context is opened with; it needs one row of logits at a time."""
    draft = configuration.draft
    if draft is None:
        raise EngineError("the configuration has no draft model: name one with --draft")
    return replace(
        target_settings(configuration),
        placement=placement_of(
            replace(
                configuration,
                model_path=draft.model_path,
                n_gpu_layers=draft.n_gpu_layers,
                n_cpu_moe=0,
                tensor_overrides=(),
            )
        ),
        n_ctx=draft.n_ctx,
        type_k=draft.type_k,
        type_v=draft.type_v,
        lora_paths=(),
        n_rows=1,
        n_sequences=1,
        owner="draft",
    )


def _template(backend: LlamaCppBackend) -> ChatTemplate:
    vocabulary = backend.vocabulary
    return ChatTemplate(
        backend.chat_template,
        bos=_spelling(vocabulary.bos, backend),
        eos=_spelling(vocabulary.eos, backend),
    )


def _spelling(token: int | None, backend: LlamaCppBackend) -> str:
    return "" if token is None else backend.vocabulary.text(token).decode("utf-8", "replace")


def _loaded(
    configuration: Configuration,
    session: Session,
    target: LlamaCppBackend,
    draft: LlamaCppBackend | None,
    watch: Stopwatch,
) -> Loaded:
    return Loaded(
        model_name=target.model_name or configuration.model_path.stem,
        file_type=target.file_type,
        n_vocab=target.vocabulary.n_tokens,
        n_ctx=target.n_ctx,
        n_ctx_train=target.n_ctx_train,
        can_crop=target.can_crop,
        has_chat_template=target.chat_template is not None,
        vocabulary_id=target.vocabulary.identifier,
        configuration=configuration,
        predictors=session.predictors,
        buffers=target.buffers + (draft.buffers if draft is not None else ()),
        notes=tuple(_notes(configuration, target)),
        elapsed_s=watch.total(),
    )


def _notes(configuration: Configuration, target: LlamaCppBackend) -> list[str]:
    notes = []
    if target.chat_template is None:
        notes.append(
            "this model has no chat template, so it is probably no chat model: "
            "a plain User/Assistant transcript is used"
        )
    if target.n_ctx > target.n_ctx_train:
        notes.append(
            f"the context of {target.n_ctx} is longer than the {target.n_ctx_train} tokens that "
            "the model was trained on: quality will fall behind them"
        )
    wants_speculation = configuration.speculation.predictor is not PredictorName.OFF
    if wants_speculation and not target.can_crop:
        notes.append(
            "speculation is off: the state of a recurrent model cannot go back behind a refuted "
            "token"
        )
    return notes
