"""The same prompt answered twice: who answers how, when, and what came of it; no Textual."""
