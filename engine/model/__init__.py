"""What a model is: its file, its layers, its chat template, and where models are found."""
