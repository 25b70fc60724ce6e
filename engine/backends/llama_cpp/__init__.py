"""The llama.cpp backend, on the C API of llama-cpp-python."""
