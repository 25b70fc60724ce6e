"""What `run`, `batch` and `replay` share: options of a reply, and replies of a loaded engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click

from app.cli import completion
from app.cli.options import (
    ADAPTER,
    FILE,
    KV_TYPE,
    PREDICTOR,
    SEED,
    Count,
    Layers,
    answer_options,
    gathered,
    is_typed,
    joined,
    opening_options,
    refuse_typed,
    sampling,
    server_option,
    system_option,
    with_answer,
)
from app.config import load_settings
from app.console import EXIT_FAILED, EXIT_INTERRUPTED, log_line, note, print_line, print_text
from app.manifests import recorded
from app.opening import ModelRequest, OpenedModel, loaded_engine, open_model
from app.render.reuse import reuse_text
from engine.configuration import (
    MAX_DRAFT,
    ComputeType,
    Configuration,
    ControllerName,
    Verification,
)
from engine.events import (
    Event,
    Finished,
    FinishReason,
    PromptReady,
    SpeculationChanged,
    TokensCommitted,
    Waiting,
)
from engine.files import replace_file
from engine.generation.reasoning import Thought
from engine.manifest import write_manifest
from engine.metrics import Metrics
from engine.process.blocking_client import BlockingClient, RequestFailedError
from engine.requests import GenerationRequest, Message

RULES = ("type_k", "type_v", "dtype", "lora", "n_gpu_layers")
"""Options that are keys of a preset."""
DRAFTS = ("controller", "n_draft", "verification", "bonus_token")
OF_A_LOAD = {*RULES, *DRAFTS, "predictor", "written_path"}
"""Options that a running server cannot follow."""


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """What was typed of every reply, besides its sampling."""

    system: str | None
    """None is that of the preset or the settings."""
    stop: tuple[str, ...]
    max_tokens: int | None
    seed: int | None


metrics_option = click.option(
    "--metrics", "metrics_path", type=FILE, help="Write metrics for Prometheus to this file."
)
write_manifest_option = click.option(
    "--write-manifest", "written_path", type=FILE,
    help="Run without drafts, and record the run in this file for `kvchat replay`.",
)  # fmt: skip
output_options = joined(
    click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON."),
    click.option("--verbose", "is_verbose", is_flag=True,
                 help="Report which part of the prompt was reused or recomputed, and why."),
)  # fmt: skip
reply_options = joined(
    click.option("--model", "-m", metavar="MODEL", shell_complete=completion.models,
                 help="Model: a path or a name. [the default in the settings, else the model used "
                      "last]"),
    server_option,
    opening_options,
    click.option("--type-k", type=KV_TYPE, help="Type of the K cache."),
    click.option("--type-v", type=KV_TYPE, help="Type of the V cache."),
    click.option("--dtype", type=click.Choice(get_args(ComputeType)),
                 help="Data type of the torch engine. [auto: the smallest one supported]"),
    click.option("--lora", type=ADAPTER, multiple=True,
                 help="LoRA adapter and its scale; repeatable."),
    click.option("--gpu-layers", "n_gpu_layers", type=Layers(),
                 help="Number of layers on the GPU."),
    click.option("--predictor", type=PREDICTOR, metavar="[off|lookup|suffix|combined|draft]",
                 help="Predictor that drafts tokens."),
    click.option("--controller", type=click.Choice(["fixed", "auto"]),
                 help="Controller of the draft length."),
    click.option("--n-draft", type=Count(1, MAX_DRAFT),
                 help="Draft length of the fixed controller."),
    click.option("--verification", type=click.Choice(get_args(Verification)),
                 help="How drafts are verified above temperature 0."),
    click.option("--bonus-token/--no-bonus-token", default=None,
                 help="Emit one more token after a fully accepted draft."),
    click.option("--temperature", type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy."),
    click.option("--top-k", type=Count(0),
                 help="Top-k: sample from the k most likely tokens; 0: off."),
    click.option("--top-p", type=sampling("top_p"),
                 help="Top-p: sample from the smallest set of tokens with this total probability."),
    click.option("--min-p", type=sampling("min_p"),
                 help="Min-p: minimum probability relative to the most likely token."),
    click.option("--repetition-penalty", type=sampling("repetition_penalty"),
                 help="Repetition penalty; 1: off."),
    system_option,
    answer_options,
    click.option("--stop", multiple=True, help="End the reply at this text; repeatable."),
    click.option("--max-tokens", type=Count(), help="Maximum tokens per reply, such as 2k."),
    click.option("--seed", type=SEED, help="Sampling seed. [random]"),
    metrics_option,
    gathered("reply", "app.cli.replies:ReplyOptions"),
)  # fmt: skip
"""Model, settings, sampling and end of the replies."""


def open_for_replies(
    asked: ModelRequest, reply: ReplyOptions, typed: dict[str, Any]
) -> OpenedModel:
    """The model and its settings with what was typed; `typed` is the rest of `reply_options`.

    Raises:
        UsageError: An option does not go with a running server.
        EngineError: As of `open_model`.
    """
    if is_typed("server"):
        _refuse_of_a_load()
    rules = {name: value for name in RULES if (value := typed.pop(name)) not in (None, ())}
    opened = open_model(replace(asked, rules={**asked.rules, **rules}), load_settings().settings)
    if opened.types_note is not None:
        note(opened.types_note)
    if opened.configuration.server is not None:
        _refuse_of_a_load()
    return replace(
        opened,
        configuration=_with_typed(opened.configuration, typed),
        system_prompt=opened.system_prompt if reply.system is None else reply.system,
    )


def _refuse_of_a_load() -> None:
    refuse_typed("the settings of a running server cannot be changed", OF_A_LOAD.__contains__)


def _with_typed(configuration: Configuration, typed: dict[str, object]) -> Configuration:
    """The configuration with the typed draft and sampling settings, which cost no memory."""
    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    sampling = with_answer(configuration.sampling, given)
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = replace(speculation, predictor=given.pop("predictor"))
    drafts = {name: given.pop(name) for name in DRAFTS if name in given}
    if "controller" in drafts:
        drafts["controller"] = ControllerName(drafts["controller"])
    return replace(
        configuration,
        speculation=replace(speculation, **drafts),
        sampling=replace(sampling, **given),
    )


def base_request(opened: OpenedModel, reply: ReplyOptions) -> GenerationRequest:
    """A request without its prompt."""
    return GenerationRequest(
        sampling=opened.configuration.sampling,
        max_tokens=reply.max_tokens or opened.max_tokens,
        stop=reply.stop,
        seed=reply.seed,
    )


def messages_of(system: str, *prompts: str) -> tuple[Message, ...]:
    """The system prompt, if there is one, and the prompts of the user."""
    first = (Message("system", system),) if system else ()
    return (*first, *(Message("user", each) for each in prompts))


@dataclass(slots=True)
class Replies:
    """A loaded engine, and the figures of its replies."""

    engine: BlockingClient
    metrics: Metrics
    is_verbose: bool
    """Whether reused tokens are reported on standard error."""
    prompt: PromptReady | None = None
    """Prefill of the last reply."""

    def observe(self, event: Event) -> None:
        """Count an event."""
        self.metrics.observe(event)
        if isinstance(event, PromptReady):
            self.prompt = event
            if self.is_verbose:
                log_line(reuse_text(event))

    def answer(self, request: GenerationRequest, *, shows_text: bool) -> Finished:
        """Print a reply as it comes; Ctrl+C stops it and keeps its text."""
        self.prompt = None
        try:
            self._follow(self.engine.reply(request), shows_text=shows_text)
        except KeyboardInterrupt:
            self.engine.client.stop()
            self._follow(self.engine.rest_of_reply(), shows_text=shows_text)
        assert self.engine.finished is not None
        return self.engine.finished

    def _follow(self, events: Iterator[Event], *, shows_text: bool) -> None:
        shown = ""
        for event in events:
            self.observe(event)
            match event:
                case TokensCommitted(text=text) if shows_text and text:
                    print_text([text], nl=False)
                    shown = text
                case SpeculationChanged(note=str(text)) | Waiting(text=text) if text:
                    note(text)
                case Finished() if shown and not shown.endswith("\n"):
                    print_line()

    def write_manifest(
        self,
        path: Path,
        prompts: tuple[str, ...],
        system: str,
        request: GenerationRequest,
        replies: list[Finished],
        since: float,
    ) -> None:
        """Write the manifest of a run, unless it was stopped."""
        if any(reply.reason is FinishReason.CANCELLED for reply in replies):
            note(f"the run was stopped: {path} was not written")
            return
        manifest = recorded(
            self.engine.last_loaded,
            prompts=prompts,
            system=system,
            request=request,
            replies=replies,
            since=since,
        )
        write_manifest(manifest, path)


@contextmanager
def loaded(
    configuration: Configuration, metrics_path: Path | None, *, is_verbose: bool = False
) -> Iterator[Replies]:
    """An engine for the block; its metrics are written however the block ends."""
    with loaded_engine(configuration, note) as engine:
        metrics = Metrics()
        metrics.observe(engine.last_loaded)
        try:
            yield Replies(engine, metrics, is_verbose)
        except RequestFailedError as error:
            metrics.observe(error.event)
            raise
        finally:
            if metrics_path is not None:
                replace_file(metrics_path, [metrics.prometheus().encode()], is_durable=False)


def summary(finished: Finished, prompt: PromptReady | None) -> dict[str, object]:
    """The JSON of a reply: its text, its counts, and its times in seconds."""
    thought = Thought.of(finished.text)
    return {
        "text": finished.text,
        "thinking": None if thought is None else thought.text,
        "answer": finished.text if thought is None else thought.answer,
        "finish_reason": finished.reason.value,
        "fits_grammar": finished.fits_grammar,
        "token_ids": finished.token_ids,
        "seed": finished.seed,
        **finished.stats.figures(),
        "prompt": prompt if prompt is not None and prompt.n_prompt else None,
    }


def exit_code(finished: Finished) -> int:
    """The exit code of a reply; a reply that was cut off is noted."""
    if finished.reason is FinishReason.CANCELLED:
        return EXIT_INTERRUPTED
    if finished.reason is FinishReason.CONTEXT:
        note("the reply was cut off because the context is full: raise --ctx")
    if finished.fits_grammar is False:
        is_short = finished.reason is FinishReason.LENGTH
        why = ": raise --max-tokens" if is_short else f" ({finished.reason})"
        note(f"the reply ended before the schema or grammar was satisfied{why}")
        return EXIT_FAILED
    return 0
