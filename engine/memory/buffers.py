"""The size of a buffer: what events and plans both speak of, so it imports neither."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BufferSize:
    """One buffer as llama.cpp reported it."""

    device: str
    kind: str
    """`model`, `KV`, `compute`, `output` or `RS`."""
    nbytes: int
    owner: str = "target"
    """`target`, `draft` or `projector`."""

    @property
    def is_mapped(self) -> bool:
        """Whether it is pages of the model's file in main memory."""
        return self.device == "CPU_Mapped"
