"""Which cache kind: candidates, budget, gates, speed, and the plan that is kept."""
