"""kvchat itself, through the client that its screen uses; and the token ids for everyone."""

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import llama_cpp
import psutil
from common import ask, load

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration, DraftConfiguration, PredictorName, SamplingSettings
from engine.configuration import SpeculationSettings as Speculation
from engine.experiment.arm import parse_arm
from engine.experiment.prompts import BenchPrompt
from engine.generation.prompt import chat_prompt
from engine.memory.hardware import this_processor
from engine.model.chat_template import ChatTemplate
from engine.requests import GenerationRequest, Message
from speed_peers.catalogue import Mode, Question, Sampling, Setup
from speed_peers.records import PeerError, Reply


class Kvchat:
    """A worker process; with a draft model when one is given, as a user would have it loaded."""

    def __init__(self, setup: Setup) -> None:
        draft = None
        if setup.draft is not None:
            draft = DraftConfiguration(setup.draft.resolve(), n_ctx=setup.n_ctx)
        self._engine = load(
            setup.model,
            n_ctx=setup.n_ctx,
            n_threads=setup.n_threads,
            draft=draft,
            speculation=Speculation(predictor=PredictorName.OFF),
        )
        self.versions: dict[str, str] = {}

    def ask(self, mode: Mode, question: Question, sampling: Sampling) -> Reply:
        self._engine.client.set_speculation(settings_of(mode))
        request = GenerationRequest(
            messages=(Message("user", question.text),),
            sampling=SamplingSettings(temperature=sampling.temperature),
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
        )
        finished = ask(self._engine, request)
        stats = finished.stats
        if stats.n_prompt != len(question.tokens):
            raise PeerError(
                f"kvchat read {stats.n_prompt} tokens where the others were sent "
                f"{len(question.tokens)}: {question.name}"
            )
        return Reply(
            finished.token_ids,
            n_steps=stats.n_emitted,
            elapsed_s=stats.decode_s,
            n_drafted=stats.n_verified,
            n_accepted=stats.n_accepted,
            n_rounds=stats.n_rounds,
        )

    def close(self) -> None:
        self._engine.client.close()


def settings_of(mode: Mode) -> Speculation:
    """The speculation of a mode; everything that a policy does not name is the default."""
    if mode.is_plain:
        return Speculation(predictor=PredictorName.OFF)
    return parse_arm(str(mode.settings["policy"])).of(Speculation())


def make_questions(
    model: Path, prompts: Iterable[BenchPrompt]
) -> tuple[tuple[Question, ...], tuple[int, ...]]:
    """The prompts as kvchat's ids, and the ids that end a turn in this vocabulary."""
    backend = LlamaCppBackend(Configuration(model, n_ctx=256), NativeLog())
    try:
        vocabulary = backend.vocabulary

        def spelling(token: int | None) -> str:
            return "" if token is None else vocabulary.text(token).decode("utf-8", "replace")

        template = ChatTemplate(
            backend.chat_template, bos=spelling(vocabulary.bos), eos=spelling(vocabulary.eos)
        )
        questions = tuple(
            Question(
                prompt.set_name,
                prompt.name,
                prompt.text,
                chat_prompt((Message("user", prompt.text),), template, vocabulary).tokens,
            )
            for prompt in prompts
        )
        ends = tuple(filter(vocabulary.is_end, range(vocabulary.n_tokens)))
    finally:
        backend.close()
    return questions, ends


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, system and date; nothing that names its owner."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "processor": this_processor().name,
        "cores": f"{psutil.cpu_count(logical=False) or '?'} physical, {os.cpu_count()} in all",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_kvchat() -> dict[str, str]:
    """kvchat's commit and the binding that it decodes with."""
    done = subprocess.run(
        ("git", "describe", "--always", "--dirty"),
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    versions = {"kvchat": done.stdout.strip() or "unknown"}
    return versions | {"llama-cpp-python": llama_cpp.__version__}
