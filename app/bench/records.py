"""What a benchmark writes down: its settings and every run; the JSON file is these classes."""

from dataclasses import dataclass, field

from app.bench.policies import PLAIN

SCHEMA = 1
"""Raised whenever a field changes its meaning; older files are then refused, not misread."""


@dataclass(frozen=True, slots=True)
class Run:
    """One reply: who drafted, how fast, and what was counted."""

    policy: str
    """Name of a policy, or `plain`."""
    pair: int
    group: int
    """Runs of one pair and group stood next to each other."""
    seed: int
    decode_tps: float
    """Tokens a second behind the prefill."""
    n_tokens: int
    finish_reason: str
    n_rounds: int
    n_verified: int
    n_accepted: int
    n_emitted: int
    parts_at: int | None = None
    """Index of the first token that differs from the plain run beside it, None where none does; of
    a plain run, from the first plain run of its pair."""
    parts_as: str = ""
    """The text from there on, shortened; empty where it does not part."""
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Verified and accepted tokens of each predictor."""
    by_position: tuple[tuple[int, int], ...] = ()
    """Examined and accepted tokens of the first place of the drafts, the second and so on."""
    last_reason: str = ""
    """What the rule of the length said at the end of the reply."""

    @property
    def is_plain(self) -> bool:
        return self.policy == PLAIN


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What rounds of one size took over a prompt, the target's batch and the choice together."""

    n_rows: int
    n_rounds: int
    median_s: float


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """All runs of one prompt at one temperature, or why there are none."""

    set_name: str
    prompt: str
    temperature: float
    n_prompt: int = 0
    """Tokens of the prompt."""
    is_loop: bool = False
    """Whether the plain reply ends in repeating itself."""
    text: str = ""
    """The first plain reply."""
    runs: tuple[Run, ...] = ()
    batches: tuple[BatchCost, ...] = ()
    notes: tuple[str, ...] = ()
    """What the engine had to say, such as a predictor that failed."""
    failure: str | None = None
    """Why the prompt has no runs, None where it has them."""

    @property
    def key(self) -> tuple[str, str, float]:
        """What a run that is resumed knows the prompt by."""
        return self.set_name, self.prompt, self.temperature


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    system: str
    processor: str
    n_cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    llama_cpp: str
    """Version of the binding and what its build was made for."""
    kvchat: str
    python: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured."""

    model: str
    """File name of the model."""
    model_bytes: int
    file_type: str
    n_vocab: int
    n_ctx: int
    n_threads: int | None
    draft: str | None
    draft_bytes: int | None
    policies: tuple[str, ...]
    n_pairs: int
    n_tokens: int
    """Most tokens of a reply."""
    seed: int
    verification: str
    strict: bool


@dataclass(frozen=True, slots=True)
class Results:
    """A benchmark as far as it has come."""

    machine: Machine
    subject: Subject
    started: str
    """Date and time in ISO 8601, with the offset."""
    prompts: tuple[PromptRecord, ...] = ()
    elapsed_s: float = 0.0
    """Time of all prompts so far, those of earlier runs included."""
    schema: int = SCHEMA
