"""The engine's process as it is, killed where the walk's aim says so."""

from engine.process import worker
from walker.kills import aim_in_worker

if __name__ == "__main__":
    aim_in_worker()
    worker.main()
