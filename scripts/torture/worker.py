"""The engine's process as it is, but for the moment that it is killed at."""

import os
from pathlib import Path

from engine.process import worker
from torture.aim import aim_in_worker
from torture.journal import Journal
from torture.plan import plan_of_environment
from torture.sabotage import break_worker


def main() -> None:
    """Run the worker, killed where the plan says so."""
    plan = plan_of_environment()
    journal = Journal(Path(plan.journal))
    journal.tell("worker", pid=os.getpid())
    aim_in_worker(plan, journal)
    break_worker(plan)
    worker.main()


if __name__ == "__main__":
    main()
