"""The best configuration of a model for a goal, under a memory budget for each device."""

from engine.memory.search.alternatives import Alternative
from engine.memory.search.goals import Goal, Limits, Offload, Pair, parse_pair
from engine.memory.search.run import Found, search
from engine.memory.search.steps import Step

__all__ = [
    "Alternative", "Found", "Goal", "Limits", "Offload", "Pair", "Step", "parse_pair", "search",
]  # fmt: skip
