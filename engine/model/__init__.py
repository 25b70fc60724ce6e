"""Model files: headers, layers, chat templates, and where models are found."""
