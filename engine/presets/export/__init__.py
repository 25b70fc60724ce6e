"""Configurations in the words of other programs, one module for each."""
