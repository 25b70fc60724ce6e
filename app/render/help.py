"""The help: keys as they are bound now, and what the words on the screen mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.render.lines import EMPTY, Line, Run, spread, wrapped

KEY_WIDTH = 22
WITH_IDS_WIDTH = 80
"""From this width on the ids of the keys are shown, which the settings use."""

GLOSSARY = (
    ("draft", "Tokens that a predictor guesses ahead of the model, to be checked all at once."),
    ("validated", "Drafted tokens that the model would have written too; they are kept."),
    ("refuted", "Drafted tokens that were checked and thrown away."),
    ("acceptance", "Validated tokens of all that were checked, those after a miss included."),
    ("tokens per round", "Tokens that one pass through the model gave: 1 without speculation."),
    ("look-up", "A predictor that finds the last words earlier in the chat and proposes what "
                "followed them there. Costs nothing; good at edits, quotes and summaries."),
    ("suffix", "The predictor at first: it proposes what mostly followed the last words in this "
               "chat, as long as that is likely enough."),
    ("combined", "Suffixes draft; where they are silent, the "
                 "draft model, if one is loaded."),
    ("draft model", "A predictor that is a smaller model with the same vocabulary."),
    ("fixed", "The rule that drafts the same number of tokens every round."),
    ("auto", "The rule at first: it drafts what pays. It measures what drafted tokens cost here "
             "and how often they are right, and risks no more than a small budget."),
    ("coupled", "How drafts are checked at a temperature above 0: the noise of a token depends on "
                "seed and position only, so the text is the same with and without speculation."),
    ("time saved", "By the rounds with a draft, against plain steps measured around them; a dash "
                   "where nothing was drafted, or where it may be the noise of the machine."),
    ("~ and noisy", "The machine is not quiet: ±35% says that eight of ten plain steps were within "
                    "35 % of what was expected; ~ marks the figures that this blurs."),
    ("by position", "How often the first, second, third token of a draft is right, of the drafts "
                    "that were right up to there."),
    ("steps", "The chart's unit: the time of one token alone. Bars are measured, in this "
              "run or an earlier one, dashes guessed; three tokens at once, two of them drafted, "
              "that take 1.8 steps pay as soon as one draft is right."),
    ("correction", "The model's own token instead of the first refuted one."),
    ("bonus", "The model's own token after a draft that was right as a whole."),
    ("prefill", "Reading the prompt into the cache before the first token can come."),
    ("first token", "Time from sending a message to the first token of the reply."),
    ("KV cache", "What the model keeps of every token it has read: keys and values."),
    ("cells", "Room in the KV cache, one for each token of the context."),
    ("hot", "In the cells of the loaded context, ready to go on at once."),
    ("warm", "Kept in main memory, as a snapshot of cells that goes back into the context in "
             "milliseconds."),
    ("cold", "Kept on disk, so that it outlives kvchat; it becomes warm before it is used."),
    ("going on", "A reply that was cut continues after its own tokens, in the same message."),
    ("prefix reuse", "The part of a prompt that the cache held already and that was not read "
                     "again."),
    ("restored, missed", "Prompts of which a start came back from main memory or disk, and those "
                         "that were computed though the context did not hold them; one that the "
                         "context held is neither."),
    ("planned", "What the estimate said before loading; measured is what llama.cpp allocated."),
    ("variant", "A reply or question beside another one: regenerate and edit keep both."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """One key and what it does."""

    keys: str
    what: str
    name: str = ""
    """The id by which the settings rebind it."""


@dataclass(frozen=True, slots=True)
class KeySection:
    """The keys of one part of the screen."""

    title: str
    keys: tuple[KeyHelp, ...]


def help_lines(sections: Sequence[KeySection], width: int) -> list[Line]:
    """Keys by section, then the glossary, at a width."""
    lines: list[Line] = []
    for section in sections:
        lines += [(Run(section.title, "heading-minor"),)]
        for key in section.keys:
            lines += _entry(key.keys, key.what, "accent", width, key.name)
        lines.append(EMPTY)
    lines.append((Run("what the words mean", "heading-minor"),))
    for term, meaning in GLOSSARY:
        lines += _entry(term, meaning, "strong", width)
    return lines


def _entry(term: str, meaning: str, style: str, width: int, name: str = "") -> list[Line]:
    name = name if width >= WITH_IDS_WIDTH else ""
    parts = wrapped((Run(meaning),), max(width - KEY_WIDTH - len(name) - 2, 10))
    if name:
        parts[0] = spread(parts[0], (Run(name, "muted"),), width - KEY_WIDTH)
    head = f"{term:<{KEY_WIDTH}}" if len(term) < KEY_WIDTH else term + " "
    first = [(Run(head, style), *parts[0])] if len(term) < KEY_WIDTH else [(Run(head, style),)]
    rest = parts[1:] if len(term) < KEY_WIDTH else parts
    return [*first, *[(Run(" " * KEY_WIDTH), *part) for part in rest]]
