"""A plan with llama.cpp's own numbers in the place of formulas."""

from dataclasses import replace

from app.planning.plan import Plan
from engine.memory.dry_run import DryRun, with_measured
from engine.model.architecture import read_model


def measured_plan(plan: Plan, dry_run: DryRun | None = None) -> Plan:
    """Ask llama.cpp's dry run; where it cannot measure, the formula's numbers stay.

    It measures this machine's own devices, not sizes that were typed. A draft model is laid out by
    itself and counted beside the target. The largest context stays the formula's.

    Args:
        plan: What was planned.
        dry_run: A process to use and leave open; None starts one for this question.

    Raises:
        WorkerError: llama.cpp refuses the configuration, or does not work here.
        ModelFileError: the draft model cannot be read.
    """
    if not can_measure(plan):
        return plan
    if dry_run is None:
        with DryRun() as own:
            return measured_plan(plan, own)
    configuration = plan.setup.configuration
    buffers = dry_run.measure(configuration, plan.setup.target)
    draft = None if configuration.draft is None else read_model(configuration.draft.model_path)
    return replace(plan, estimate=with_measured(plan.estimate, buffers, draft))


def can_measure(plan: Plan) -> bool:
    """Whether the dry run's machine is the one that is planned for, and the model is a file."""
    return not plan.setup.is_elsewhere and plan.setup.configuration.model_path.is_file()
