"""What a type of KV cache costs on a model and a text, from the options to table and page."""

USUAL_KINDS = "q8_0,q8_0/q5_1,q5_1,q8_0/q4_0,q4_0"
MOST_TOKENS = 32 * 1024
"""What is measured where nothing else is said."""
