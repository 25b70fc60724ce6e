"""Predictors of drafted tokens."""
