from pathlib import Path

import pytest

from engine.errors import IncompatiblePairError
from engine.model.architecture import read_model
from engine.model.catalog import find_entry
from engine.model.vocabulary_headers import check_headers, header_difference


def test_headers_of_other_vocabularies_are_refused(starter_path: Path, gemma_path: Path) -> None:
    starter, gemma = read_model(starter_path).file, read_model(gemma_path).file
    assert header_difference(starter, starter) is None
    with pytest.raises(IncompatiblePairError, match=r"tokenizer\.ggml\.\w+ is .* in the target"):
        check_headers(starter, gemma)
    llama_2, llama_3 = (find_entry(name).header() for name in ("llama-2-7b", "llama-3.2-1b"))
    assert "more than 128 apart" in str(header_difference(llama_2, llama_3))
