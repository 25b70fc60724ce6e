"""Who guesses, how many tokens, and whether the guess was right."""
