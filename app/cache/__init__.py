"""The states that are kept on disk, as a person looks at them."""
