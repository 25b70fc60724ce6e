"""Keys and values of one layer of one sequence, in several cache types with one interface."""
