from pathlib import Path

import cache_quality
import pytest

from tests.engine.quality.made_reports import Q8_Q4, made_measurement, made_report

SAID = """
Mean ln(PPL(Q)/PPL(base))     :  -0.010196 ±   0.004512
====== KL divergence statistics ======
Mean    KLD:   0.004225 ±   0.000123
Maximum KLD:   0.031000
99.9%   KLD:   0.025830
99.0%   KLD:   0.018000
Same top p: 96.863 ± 0.773 %
"""


def test_what_the_tool_prints_is_read() -> None:
    found = {name: float(one.findall(SAID)[0]) for name, one in cache_quality.FIGURES.items()}
    assert found == {"mean": 0.004225, "p99.9": 0.02583, "same top": 96.863, "loss": -0.010196}


def test_the_page_has_each_run_of_each_kind_and_keeps_what_is_written_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{cache_quality.BEGIN}\nold\n{cache_quality.END}\nafter\n")
    monkeypatch.setitem(cache_quality.PAGES, "llama.cpp", page)
    report = made_report(made_measurement(Q8_Q4, 0.02))
    cache_quality.write_pages([report, report])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("### made-up.gguf") == 1
    assert text.count("| q8_0/q4_0 | ") == 3, "two runs, and the parts"
    assert "| f16 (control) | 2 |" in text
    cache_quality.write_pages([report])
    assert page.read_text().count("| f16 (control) | ") == 2


@pytest.mark.parametrize("backend", sorted(cache_quality.PAGES))
def test_the_real_pages_have_their_marks(backend: str) -> None:
    text = cache_quality.PAGES[backend].read_text()
    assert text.index(cache_quality.BEGIN) < text.index(cache_quality.END)
