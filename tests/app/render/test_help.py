from app.render.help import GLOSSARY, KeyHelp, KeySection, help_lines
from app.render.lines import plain, width_of


def test_the_glossary_explains_the_words_of_the_cockpit() -> None:
    terms = {term for term, _ in GLOSSARY}
    assert {"validated", "refuted", "acceptance", "hot", "cells", "prefix reuse", "coupled",
            "look-up", "draft model", "tokens per round", "first token", "prefill",
            "KV cache"} <= terms  # fmt: skip


def test_keys_stand_with_what_they_do_and_their_id() -> None:
    sections = [KeySection("here", (KeyHelp("f5", "Switches", "speculation-predictor"),))]
    shown = [plain(line) for line in help_lines(sections, 90)]
    assert shown[0] == "here"
    assert shown[1].split() == ["f5", "Switches", "speculation-predictor"]
    assert all(width_of(line) <= 60 for line in help_lines(sections, 60))


def test_a_blank_line_parts_the_sections_and_the_glossary() -> None:
    key = KeyHelp("f5", "Switches")
    sections = [KeySection("here", (key,)), KeySection("anywhere", (key, key))]
    shown = [plain(line) for line in help_lines(sections, 90)]
    blank = [index for index, line in enumerate(shown) if not line]
    assert [shown[index + 1] for index in blank] == ["anywhere", "what the words mean"]
