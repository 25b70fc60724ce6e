"""Plans, their options and alternatives, and the search: for screen, commands and scripts."""
