"""Rules to numbers: a preset with a model and a machine.

`flash_attention = "auto"` on the processor, where the goal is speed: llama.cpp's flash attention
(0c1e57098, `ggml-cpu/ops.cpp`) reads all keys and values again for each token of a batch of up to
63; attention with a table of scores reads them once. At depth 2,000 the latter took 0.68 to
0.92 of the time for one token, 0.49 to 0.78 for sixteen and 0.99 to 1.17 for a prompt, with heads
of 64 and 128 elements on x86-64 (`benchmarks/results/attention.md`). Where most layers slide a
window it brought nothing.

It is not the usual choice because its rows round otherwise in a batch than alone: with flash
attention and weights that llama.cpp does not repack, drafts leave the text of a short chat as it is
to the bit.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from engine.configuration import (
    Adapter,
    Configuration,
    DraftConfiguration,
    KVTypes,
    PredictorName,
)
from engine.errors import PresetError
from engine.files import expanded, is_file
from engine.memory.estimate import Companions, DoesNotFitError, Estimator, estimator, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD, with_types
from engine.memory.terms import Target
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.model.gguf import read_gguf
from engine.model.library import projector_beside
from engine.model.vocabulary import check_headers
from engine.planning.cache_types import (
    kinds_for,
    open_types,
    pairs_for,
    with_budget,
    with_kv_types,
)
from engine.planning.offload import (
    Offload,
    bisect,
    fastest_fitting,
    filling,
    free_bytes,
    offload_levels,
)
from engine.planning.search import Goal, SearchLimits, search
from engine.planning.verdict import does_not_fit
from engine.policy.choice import BudgetError, TypeRequest
from engine.policy.known import Known
from engine.presets.preset import Preset

NO_PROJECTOR = "off"
AUTO_N_CTX = 8192
FALLBACK_N_CTX = 512
CHANGES = ("a smaller quantisation", "fewer layers on the GPU", "a smaller margin")
TABLE_SHARE = 1 / 32
"""Maximum share of RAM for the attention scores."""


def resolve(
    preset: Preset | None,
    model: Model,
    devices: tuple[Device, ...],
    *,
    target: Target = "kvchat",
    draft: Model | None = None,
    known: Known | None = None,
) -> Configuration:
    """The configuration of a preset (None: the defaults) for a model on a machine.

    Layers on the GPU are settled first, beside a context of 8192 tokens or what training allows;
    then the context: `auto` is the smallest of training, 8192 and what fits; `max` all that fits up
    to training. Experts leave the GPU before layers. `draft` is the model that the preset or the
    user names. Without a projector in the preset it is the one that lies beside the model.

    Cache types that are `auto` are the fastest measured types that pass the gates and the budget
    (`engine.policy.choice`), at a context of 8192 tokens or the one that is named. Where the model
    does not fit with them, the next ones are tried.

    A preset with a goal leaves all of that to a search, which keeps what the preset fixes.

    Raises:
        IncompatiblePairError: the headers show that the draft cannot draft for the model.
        PresetError: the rules contradict each other; `DoesNotFitError` where nothing fits.
    """
    rules = _with_projector_beside(preset or Preset(name="default"), model)
    if draft is not None:
        check_headers(model.file, draft.file)
    start = _starting_point(rules, model.file.path, draft.file.path if draft else None)
    used = devices if rules.goal is None else _devices(rules, devices)
    cost = estimator(model, used, target=target, companions=_companions(rules, draft))
    margin, known = round(rules.margin_gib * GIB), known or Known()
    question = _Question(rules, model, used, target, cost, margin, known)
    if rules.goal is not None:
        return question.by_goal(start, Goal(rules.goal), draft)
    wanted = open_types(rules)
    return question.settle(start) if wanted is None else question.with_types(start, wanted)


@dataclass(frozen=True, slots=True)
class _Question:
    """A preset, a model and a machine whose configuration is computed."""

    rules: Preset
    model: Model
    devices: tuple[Device, ...]
    target: Target
    cost: Estimator
    margin_bytes: int
    known: Known

    @property
    def usual_n_ctx(self) -> int:
        """The requested or default context, for which types and layers are chosen."""
        if isinstance(self.rules.n_ctx, int):
            return self.rules.n_ctx
        return min(self.model.architecture.n_ctx_train, AUTO_N_CTX) * self.rules.n_slots

    def settle(self, start: Configuration, budget_bytes: int | None = None) -> Configuration:
        """Choose layers and context; the K/V types stay.

        Raises:
            DoesNotFitError: no context fits.
        """
        return self._with_context(self._with_layers(start), budget_bytes)

    def with_types(self, start: Configuration, wanted: TypeRequest) -> Configuration:
        """The best K/V types with which the context fits, else those that fit the longest."""
        usual = with_n_ctx(start, self.usual_n_ctx)
        kinds = kinds_for(wanted, usual, self.model, self.devices, self.target, self.known)
        found: list[Configuration] = []
        refusal: DoesNotFitError | None = None
        for candidate in kinds:
            try:
                now = self.settle(with_kv_types(start, candidate.pair), wanted.budget_bytes)
            except DoesNotFitError as error:
                refusal = error
                continue
            found.append(now)
            if now.n_ctx >= self.usual_n_ctx and self.cost(now).fits(self.margin_bytes):
                return now
        if not found and refusal is not None:
            raise refusal
        return max(found, key=lambda each: each.n_ctx)

    def _with_layers(self, now: Configuration) -> Configuration:
        """Put as many layers on the GPUs as fit with the default context, or with the smallest."""
        match self.rules.n_gpu_layers:
            case "all":
                return replace(now, n_gpu_layers=-1)
            case int(n_layers):
                return replace(now, n_gpu_layers=n_layers)
        levels = offload_levels(self.model, self.devices, Offload.PARTIAL)
        if self.rules.n_cpu_moe != 0:  # the preset sets the experts in RAM
            levels = tuple(
                replace(each, n_cpu_moe=now.n_cpu_moe) for each in levels if each.n_cpu_moe <= 0
            )
        contexts = [self.usual_n_ctx]
        if not isinstance(self.rules.n_ctx, int):
            contexts.append(min(self.usual_n_ctx, FALLBACK_N_CTX))
        for n_ctx in contexts:
            asked = with_n_ctx(now, n_ctx)
            found = fastest_fitting(asked, levels, self.cost, self.margin_bytes)
            if found is not None:
                break
        else:  # so that the shortage is what has to be added, not what a GPU could hold
            found = filling(with_n_ctx(now, contexts[-1]), levels, self.cost, self.margin_bytes)
        return replace(now, n_gpu_layers=found.n_gpu_layers, n_cpu_moe=found.n_cpu_moe)

    def _with_context(self, now: Configuration, budget_bytes: int | None) -> Configuration:
        if isinstance(self.rules.n_ctx, int):
            return with_n_ctx(now, self.rules.n_ctx)
        trained = self.model.architecture.n_ctx_train
        per_slot = trained if self.rules.n_ctx == "max" else min(trained, AUTO_N_CTX)
        limit, cost = per_slot * self.rules.n_slots, with_budget(self.cost, budget_bytes)

        def is_short(steps: int) -> bool:
            try:
                asked = with_n_ctx(now, min(steps * PAD, limit))
                return free_bytes(cost(asked), self.margin_bytes).least < 0
            except BudgetError:
                return True

        steps = bisect(1, max(1, -(-limit // PAD)) + 1, is_short) - 1
        if not steps:
            least = self.cost(with_n_ctx(now, FALLBACK_N_CTX))
            raise DoesNotFitError(does_not_fit(least, self.margin_bytes, CHANGES))
        return with_n_ctx(now, min(steps * PAD, limit))

    def by_goal(self, start: Configuration, goal: Goal, draft: Model | None) -> Configuration:
        """Search the best configuration for a goal; fields that the preset sets stay.

        A fixed context is used even if it does not fit.

        Raises:
            PresetError: the preset also fixes layers; `DoesNotFitError` where nothing fits.
        """
        rules = self.rules
        fixed = ["n_gpu_layers"] * (isinstance(rules.n_gpu_layers, int) and rules.n_gpu_layers > 0)
        fixed += ["n_cpu_moe"] * (rules.n_cpu_moe != 0)
        if fixed:
            raise PresetError(
                f"the goal {goal} chooses the offloaded layers: remove {' and '.join(fixed)}, or "
                "the goal"
            )
        try:
            chosen = self._searched(start, goal, draft, None)
        except DoesNotFitError:
            if isinstance(rules.n_ctx, int):
                return self.settle(start)
            chosen = self._searched(start, goal, draft, FALLBACK_N_CTX)
        if isinstance(rules.n_ctx, int):  # a slot's share is rounded up
            chosen = with_n_ctx(chosen, rules.n_ctx)
        chosen = replace(chosen, n_gpu_layers=0) if rules.n_gpu_layers == 0 else chosen
        return self._with_faster_attention(chosen) if goal is Goal.SPEED else chosen

    def _searched(
        self, start: Configuration, goal: Goal, draft: Model | None, least: int | None
    ) -> Configuration:
        return search(
            self.model,
            self.devices,
            goal,
            margin_bytes=self.margin_bytes,
            cost=self.cost,
            draft=draft,
            base=start,
            limits=_limits(self.rules, least, self.known, has_draft=draft is not None),
            known=self.known,
        ).configuration

    def _with_faster_attention(self, now: Configuration) -> Configuration:
        """Turn `auto` to `off` where that is faster and its table of scores is small and fits."""
        is_auto = now.flash_attention == "auto" and now.type_k == now.type_v == "f16"
        is_on_cpu = now.n_gpu_layers == 0 or all(each.kind == "cpu" for each in self.devices)
        if not (is_auto and is_on_cpu and _is_dense(self.model)):
            return now
        off = replace(now, flash_attention="off")
        try:
            without, with_table = self.cost(now), self.cost(off)
        except PresetError:
            return now  # the estimate raises the reason
        limit = TABLE_SHARE * sum(each.total_bytes for each in self.devices if each.kind == "cpu")
        is_small = with_table.total_bytes - without.total_bytes <= limit
        return off if is_small and with_table.fits(self.margin_bytes) else now


def _is_dense(model: Model) -> bool:
    """Whether every layer caches all tokens."""
    architecture = model.architecture
    is_plain = architecture.has_flash_attention and not architecture.is_recurrent
    layers = architecture.layers.values()
    keeps_all = (layer.v_width > 0 and layer.window is None for layer in layers)
    return is_plain and len(layers) == architecture.n_layers and all(keeps_all)


def as_written(rules: Preset, path: Path) -> Configuration:
    """The configuration of a preset without open values, such as one from `preset_of`.

    Args:
        rules: The preset.
        path: The model.

    Raises:
        PresetError: values are open (the message lists them) or contradict each other.
    """
    is_open = {
        "goal": rules.goal is not None,
        "n_ctx": not isinstance(rules.n_ctx, int),
        "type_k": rules.type_k == "auto",
        "type_v": rules.type_v == "auto",
        "kv_budget_gib": rules.kv_budget_gib is not None,
        "n_gpu_layers": rules.n_gpu_layers == "auto",
    }
    if found := [name for name, is_left in is_open.items() if is_left]:
        raise PresetError(
            f"{', '.join(found)} must have a fixed value in a manifest: write the value that "
            "was used"
        )
    start = _starting_point(rules, path, None)
    layers = -1 if rules.n_gpu_layers == "all" else int(rules.n_gpu_layers)
    return with_n_ctx(replace(start, n_gpu_layers=layers), int(rules.n_ctx))


def _starting_point(rules: Preset, path: Path, draft: Path | None) -> Configuration:
    if rules.n_ubatch > rules.n_batch and "n_ubatch" in rules.model_fields_set:
        raise PresetError(
            f"n_ubatch is {rules.n_ubatch}, larger than n_batch {rules.n_batch}: lower n_ubatch or "
            "raise n_batch"
        )
    if rules.speculation.predictor is PredictorName.DRAFT and draft is None:
        raise PresetError(
            "the predictor is draft, but no draft model is set: set model under [draft], or "
            "pass --draft MODEL"
        )
    start = Configuration(
        model_path=path,
        n_ctx=FALLBACK_N_CTX,
        **(rules.shared_fields() | {"n_ubatch": min(rules.n_ubatch, rules.n_batch)}),
        n_cpu_moe=-1 if rules.n_cpu_moe == "all" else rules.n_cpu_moe,
        mmproj_path=_projector_path(rules),
        adapters=tuple(map(Adapter.read, rules.lora)),
        draft=None if draft is None else _draft(rules, draft),
        sampling=rules.sampling.settings(),
    )
    return with_types(start, _pair(rules))


def _projector_path(rules: Preset) -> Path | None:
    return None if rules.mmproj in (None, NO_PROJECTOR) else expanded(rules.mmproj)


def _with_projector_beside(rules: Preset, model: Model) -> Preset:
    """Add the projector next to the model file, unless the rules name one."""
    is_here = model.file.origin is None  # others have a bare name, which is no place to look at
    if rules.mmproj is not None or rules.backend != "llama.cpp" or not is_here:
        return rules
    found = projector_beside(model.file.path, model.architecture.d_hidden)
    return rules if found is None else rules.model_copy(update={"mmproj": str(found)})


def _companions(rules: Preset, draft: Model | None) -> Companions:
    projector = _projector_path(rules)
    paths = [each.path for each in map(Adapter.read, rules.lora)]
    return Companions(  # loading reports a missing file
        draft,
        read_gguf(projector) if projector is not None and is_file(projector) else None,
        tuple(read_gguf(path) for path in paths if is_file(path)),
    )


def _draft(rules: Preset, path: Path) -> DraftConfiguration:
    if rules.draft is None:
        return DraftConfiguration(path, FALLBACK_N_CTX)
    layers = rules.draft.n_gpu_layers
    return DraftConfiguration(
        model_path=path,
        n_ctx=FALLBACK_N_CTX,
        n_gpu_layers=-1 if layers == "all" else layers,
        type_k=rules.draft.type_k,
        type_v=rules.draft.type_v,
    )


def _devices(rules: Preset, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices that the rules allow: no GPU if no layers, and the memory they set."""
    used = [d for d in devices if d.kind == "cpu" or rules.n_gpu_layers != 0]
    if rules.ram_gib is None:
        return tuple(used)
    nbytes = round(rules.ram_gib * GIB)
    return tuple(
        replace(device, total_bytes=nbytes, free_bytes=nbytes) if device.kind == "cpu" else device
        for device in used
    )


def _limits(rules: Preset, least: int | None, known: Known, *, has_draft: bool) -> SearchLimits:
    set_keys = rules.model_fields_set
    most = None
    if isinstance(rules.n_ctx, int):
        least = most = -(-rules.n_ctx // rules.n_slots)
    wanted = open_types(rules)
    pairs: tuple[KVTypes, ...] | None = None
    if wanted is not None:
        pairs = pairs_for(wanted, known)
    elif {"type_k", "type_v"} <= set_keys:
        pairs = (_pair(rules),)
    elif set_keys & {"type_k", "type_v"}:
        pair = _pair(rules)
        fixed = (pair.k, None) if "type_k" in set_keys else (None, pair.v)
        pairs = pairs_for(TypeRequest(PAD, None, *fixed), known)
    return SearchLimits(
        min_n_ctx=least,
        max_n_ctx=most,
        pairs=pairs,
        cache_bytes=None if wanted is None else wanted.budget_bytes,
        offload=Offload.NONE if rules.n_gpu_layers == "all" else Offload.PARTIAL,
        must_draft=has_draft,
        can_shrink_batches="n_ubatch" not in set_keys,
    )


def _pair(rules: Preset) -> KVTypes:
    """The K/V types of a preset; f16 if open."""
    type_k, type_v = rules.type_k, rules.type_v
    return KVTypes("f16" if type_k == "auto" else type_k, "f16" if type_v == "auto" else type_v)
