"""The doubles by the name that they had here; they are `engine.testing`."""

from engine.testing import TEMPLATE, FakeBackend, FakeSequence, FakeVocabulary

__all__ = ["TEMPLATE", "FakeBackend", "FakeSequence", "FakeVocabulary"]
