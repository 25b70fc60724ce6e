"""What a machine likes: settings measured against each other in pairs."""
