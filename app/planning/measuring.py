"""A plan with llama.cpp's own numbers in the place of formulas."""

from dataclasses import replace

from app.planning.plan import Plan
from engine.memory.dry_run import DryRun, with_measured


def measured_plan(plan: Plan, dry_run: DryRun | None = None) -> Plan:
    """Ask llama.cpp's dry run; where it cannot measure, the formula's numbers stay.

    It measures this machine's own devices and one model, so neither sizes that were typed nor a
    draft model. The largest context stays the formula's.

    Args:
        plan: What was planned.
        dry_run: A process to use and leave open; None starts one for this question.

    Raises:
        WorkerError: llama.cpp refuses the configuration, or does not work here.
    """
    if not can_measure(plan):
        return plan
    if dry_run is None:
        with DryRun() as own:
            return measured_plan(plan, own)
    buffers = dry_run.measure(plan.setup.configuration, plan.setup.target)
    return replace(plan, estimate=with_measured(plan.estimate, buffers))


def can_measure(plan: Plan) -> bool:
    """Whether the dry run's machine is the one that is planned for."""
    return not plan.setup.vram_bytes and plan.setup.configuration.draft is None
