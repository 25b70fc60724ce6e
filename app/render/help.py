"""The help: keys as they are bound now, and what the words on the screen mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.render.lines import EMPTY, Line, Run, spread, wrapped

KEY_WIDTH, TERM_WIDTH = 10, 22
"""Cells of the keys, and of the terms of the glossary; longer ones have a line of their own."""
WITH_IDS_WIDTH = 80
"""From this width on the ids of the keys are shown, which the settings use."""

GLOSSARY = (
    ("draft", "Tokens that a predictor (lookup, suffix or a draft model) proposes; the model "
              "verifies them in one batch."),
    ("validated", "Drafted tokens that the model accepted."),
    ("refuted", "Drafted tokens that the model rejected."),
    ("acceptance", "Accepted tokens divided by verified draft tokens; all draft tokens after a "
                   "rejected one count as rejected."),
    ("tokens per round", "Tokens emitted per pass through the model; 1 without speculation."),
    ("lookup", "A predictor that searches the chat for an earlier copy of the last tokens and "
               "proposes the tokens that followed. It costs almost nothing and suits edits and "
               "quotes."),
    ("suffix", "The default predictor: it proposes the tokens that most often followed the last "
               "tokens earlier in the chat, and stops where they become unlikely."),
    ("combined", "The suffix predictor, and the draft model (if loaded) where the "
                 "suffix predictor finds no continuation."),
    ("draft model", "A smaller model that drafts tokens, with the vocabulary of the target "
                    "model."),
    ("fixed", "A draft-length controller that drafts the same number of tokens in every round."),
    ("auto", "The default draft-length controller: it chooses the length with the largest expected "
    "gain, from the measured cost and acceptance of drafts. Its trial drafts take little time."),
    ("examined", "Draft tokens up to and including the first rejected one."),
    ("coupled", "Verification above temperature 0: the random number for a token depends only on "
                "seed and position, so the text is the same with and without speculation."),
    ("time saved", "Time that drafts saved: rounds with drafts compared with steps without drafts "
                   "shortly before or after. A dash means that nothing was drafted, or that the "
                   "difference is within the noise."),
    ("~ and noisy", "How much other programs disturbed the times. ±35 %: 8 of 10 steps without "
                    "drafts were within 35 % of the expected time. ~ marks affected figures."),
    ("by position", "How often the first, second or third token of a draft is accepted, given "
                    "that all tokens before it were accepted."),
    ("steps", "One step is the time to decode one token without drafts. Bars are measured, dashes "
              "are estimated. Example: a batch with two drafted tokens takes 1.8 steps. If one of "
              "them is accepted, the batch yields two tokens: that one and the model's own. "
              "Without drafts, they take 2 steps."),
    ("correction", "The model's own token in place of the first rejected draft token."),
    ("bonus", "The model's own token after a fully accepted draft."),
    ("prefill", "Processing of the prompt, which fills the KV cache before the first token."),
    ("first token", "Time from sending a message to the first token of the reply."),
    ("KV cache", "Attention keys and values, stored for every token in the context."),
    ("cells", "Entries of the KV cache, one for each token of the context."),
    ("hot", "States in the context of the loaded model; chats continue from these states at once."),
    ("warm", "States saved in RAM; kvchat restores them to the context in milliseconds."),
    ("cold", "States saved on disk; they survive a restart and are loaded into RAM before use."),
    ("continue", "Continue a reply that was cut off, within the same message."),
    ("prefix reuse", "The start of a prompt is already in the cache and is not computed again."),
    ("restored, missed", "Restored: prompts whose start was loaded from RAM or disk. Missed: "
                         "prompts that were computed because no state was saved. A prompt whose "
                         "start is already in the context counts as neither."),
    ("planned", "Memory estimated before loading; llama.cpp reports the measured memory."),
    ("variant", "Another version of a reply or question. Regenerating or editing keeps the old "
                "version."),
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
            lines += _entry(key.keys, key.what, "accent", width, key.name, KEY_WIDTH)
        lines.append(EMPTY)
    lines.append((Run("glossary", "heading-minor"),))
    for term, meaning in GLOSSARY:
        lines += _entry(term, meaning, "strong", width)
    return lines


def _entry(
    term: str, meaning: str, style: str, width: int, name: str = "", indent: int = TERM_WIDTH
) -> list[Line]:
    name = name if width >= WITH_IDS_WIDTH else ""
    parts = wrapped((Run(meaning),), max(width - indent - len(name) - 2, 10))
    if name:
        parts[0] = spread(parts[0], (Run(name, "muted"),), width - indent)
    head = f"{term:<{indent}}" if len(term) < indent else term + " "
    first = [(Run(head, style), *parts[0])] if len(term) < indent else [(Run(head, style),)]
    rest = parts[1:] if len(term) < indent else parts
    return [*first, *[(Run(" " * indent), *part) for part in rest]]
