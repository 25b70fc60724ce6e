"""`kvchat bench`: what speculation gains on this machine, model and text, measured in pairs."""
