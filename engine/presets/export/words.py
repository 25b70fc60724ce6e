"""An option of llama-server, and how its values are spelled."""

from dataclasses import dataclass

from engine.presets.export.flag_sets import FlagSet


@dataclass(frozen=True, slots=True)
class Option:
    """One long option, without its dashes."""

    name: str
    value: str | None = None
    """None where the option is said by its name alone."""

    @property
    def words(self) -> tuple[str, ...]:
        """The option as words of a command line."""
        flag = f"--{self.name}"
        return (flag,) if self.value is None else (flag, self.value)


def layers(n_gpu_layers: int, flags: FlagSet) -> str:
    """Give a number of layers, or the word for all of them."""
    return flags.all_layers if n_gpu_layers < 0 else str(n_gpu_layers)


def number(value: float) -> str:
    """Give a number with every digit it needs and no more: 3 for 3.0."""
    return str(int(value)) if value == int(value) else repr(value)
