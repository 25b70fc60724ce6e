"""Build information of llama.cpp.

`python -m engine.backends.llama_cpp.build` prints it as one JSON object. It runs in a separate
process, because loading a build for another processor can crash.
"""

import json
import sys

import llama_cpp


def main() -> None:
    """Write version, processor features and GPU support to standard output."""
    facts = {
        "version": llama_cpp.__version__,
        "features": llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
        "has_gpu": bool(llama_cpp.llama_supports_gpu_offload()),
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
