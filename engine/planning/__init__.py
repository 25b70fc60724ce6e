"""What is planned and what it costs, for the command and the screen; no Textual."""
