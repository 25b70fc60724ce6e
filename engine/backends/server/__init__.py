"""Replies that another program makes: llama-server, vLLM, SGLang, Ollama, any OpenAI endpoint."""
