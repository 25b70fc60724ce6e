"""Replies of servers: llama-server, vLLM, SGLang, Ollama and other OpenAI-compatible ones."""
