"""Where torch computes in the tests: the processor, or a GPU by `KVCHAT_TEST_DEVICE=cuda`."""

import os

import torch

DEVICE = torch.device(os.environ.get("KVCHAT_TEST_DEVICE", "cpu"))
N_GPU_LAYERS = 0 if DEVICE.type == "cpu" else -1
