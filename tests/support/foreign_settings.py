"""Settings of other programs, as users have them."""

from itertools import pairwise

INI = """version = 1
; all of them
[*]
n-gpu-layers = all
flash-attn = on ; always
c = 1024

[small]
model = /models/small one.gguf
LLAMA_ARG_CACHE_TYPE_K = q8_0
no-kv-offload = true
load-on-startup = true
sleep-idle-seconds = 60

[large:Q4]
model = /models/large.gguf
ctx-size = 8192
parallel = 2
"""

SWAP = """
macros:
  "server": >
    /opt/llama-server --port ${PORT}
    --flash-attn on
  ctx: 4096
models:
  "qwen":
    # the one for code
    cmd: |
      # a comment
      ${server}
      --model '/models/q w.gguf' \\
      -c ${ctx} -ctk q8_0
    env:
      - "LLAMA_ARG_CACHE_TYPE_V=q8_0"
    ttl: 300
  plain:
    cmd: llama-server -m /models/p.gguf -c 512
      -ngl 4
"""

COMPOSE = """
services:
  chat:
    image: "ghcr.io/ggml-org/llama.cpp:server-cuda"
    command: ["-m", "/models/a$$b.gguf", "-c", "2048"]
    environment:
      LLAMA_ARG_N_GPU_LAYERS: 7
  other:
    command: -m /models/c.gguf --ctx-size 512
    environment:
    - LLAMA_ARG_FLASH_ATTN=on
"""

UNIT = """[Unit]
Description=mine
[Service]
Environment="LLAMA_ARG_FLASH_ATTN=on" LLAMA_ARG_N_PARALLEL=2
ExecStart=/usr/bin/llama-server \\
    -m "/models/100%% a.gguf" -c 512
"""

ANCHORS = """
x-common: &common
  LLAMA_ARG_CTX_SIZE: 8192
  LLAMA_ARG_N_PARALLEL: 2
x-size: &size 4096
services:
  flow: {command: -m a.gguf, environment: {LLAMA_ARG_CTX_SIZE: 8192, LLAMA_ARG_N_PARALLEL: 2}}
  alias: {command: -m a.gguf, environment: *common}
  merged:
    command: -m a.gguf
    environment:
      <<: *common
      LLAMA_ARG_CTX_SIZE: *size
  lines:
    command: [
      "-m", a.gguf,
      "-c", "8192",  # of both
      "-np", 2,
    ]
  entry:
    entrypoint: ["/app/llama-server", "-m", "a.gguf"]
    command:
      - -c
      - "8192"
      - -np
      - "2"
  several: {command: -m a.gguf, environment: {<<: [*common, {LLAMA_ARG_CTX_SIZE: 1}]}}
"""

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)

MODELFILE = """# made by hand
from ./model.gguf
FROM ./projector.gguf
ADAPTER ./style.gguf
PARAMETER num_ctx 16384
PARAMETER num_gpu 20
PARAMETER top_k 7
PARAMETER stop "<|end|>"
SYSTEM \"\"\"Be kind.
Be brief.\"\"\"
TEMPLATE "{{ .Prompt }}"
"""
