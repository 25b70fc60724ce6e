"""The knobs of the planner, in the order of the screen."""

from app.planning.knob import Knob
from app.planning.knobs_cache import CACHE_KNOBS
from app.planning.knobs_files import FILE_KNOBS
from app.planning.knobs_machine import MACHINE_KNOBS
from app.planning.knobs_placement import PLACEMENT_KNOBS

KNOBS: tuple[Knob, ...] = (*CACHE_KNOBS, *PLACEMENT_KNOBS, *MACHINE_KNOBS, *FILE_KNOBS)
