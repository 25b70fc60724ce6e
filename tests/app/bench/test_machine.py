"""The facts of the machine that stand beside its numbers."""

import platform

from app.bench.machine import processor_name, this_machine


def test_the_processor_is_named_as_the_system_names_it() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC: 7763\n\nmodel name\t: another\n"
    assert processor_name(text) == "AMD EPYC: 7763"


def test_without_a_name_the_architecture_stands_there() -> None:
    assert processor_name("") in (platform.processor(), platform.machine())


def test_this_machine_has_every_fact() -> None:
    machine = this_machine()
    assert machine.n_cores >= 1
    assert machine.memory_bytes > 1 << 28
    assert "llama-cpp-python 0.3.36" in machine.llama_cpp
