"""Keys and values of one layer of one sequence, kept in many ways behind one protocol."""
