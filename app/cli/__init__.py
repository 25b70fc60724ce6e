"""The commands of kvchat; none of them imports Textual."""
