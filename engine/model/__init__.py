"""What a model is: its file, its architecture, its chat template, and where models are found."""
