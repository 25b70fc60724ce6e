"""The choice of K/V types: candidates, budget, quality gates, speed, saved measurements."""
