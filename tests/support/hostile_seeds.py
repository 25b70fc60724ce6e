"""Real texts and values that hostile inputs are made of."""

from app.store.records import Chat, ChatTree, StoredMessage
from engine.configuration import SamplingSettings
from engine.presets.library import builtin_dir
from tests.support.gguf_files import header, llama_values

URL = "https://example.org/m.gguf"
MESSAGES = tuple(
    StoredMessage(
        id=n, chat_id=1, parent_id=n - 1 or None, role="user" if n % 2 else "assistant",
        content=f"text {n}", token_ids=(1, 2), vocabulary_id="v", model_name="m", seed=7,
        finish_reason="stop", created_at=1.5,
        stats={
            **dict.fromkeys(("n_prompt", "n_reused", "n_rounds", "n_drafted", "n_verified"), 1),
            **dict.fromkeys(("n_examined", "n_accepted", "n_emitted"), 1), "decode_s": 0.5,
            "by_source": {"lookup": {"n_drafted": 1}}, "by_position": [{"n_drafted": 1}],
        },
    )
    for n in (1, 2, 3)
)  # fmt: skip
TREE = ChatTree(Chat(1, "t", False, 1.0, 1.0, "/m.gguf", "s", SamplingSettings(), 3), MESSAGES)

ANSWER = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-999/1000\r\nContent-Length: 1000\r\n"
    b'ETag: "a"\r\nLast-Modified: today\r\n\r\n' + header(llama_values(), []) + bytes(1000)
)
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nGGUF\r\n0\r\n\r\n"

COMMAND = b"""#!/bin/sh
export MODEL="/models/a b.gguf" LLAMA_ARG_N_PARALLEL=2
exec llama-server -m "$MODEL" -c 4096 -ngl 12 -ts 3,1 -ctk q8_0 --temp 0.5 \\
  --spec-type draft:n_max=3,p_min=0.5 -md d.gguf --lora a.gguf,"b c.gguf" \\
  -ot 'blk\\.[0-9]+=CPU,x=CUDA0' -ncmoe 3 --draft-max 8 --unheard 1 # end
"""
ENVIRONMENT = (
    b"LLAMA_ARG_MODEL=/m.gguf\nLLAMA_ARG_CTX_SIZE=4096\nLLAMA_ARG_FLASH_ATTN=on\nLLAMA_ODD=1\n"
)
LM_STUDIO = """{"preset": "", "operation": {"fields": [
{"key": "llm.prediction.temperature", "value": 0.7}, {"key": "llm.prediction.topPSampling",
"value": {"checked": true, "value": 0.9}}]}, "load": {"fields": [{"key": "llm.load.contextLength",
"value": 8192}, {"key": "llm.load.llama.acceleration.offloadRatio", "value": 0.5},
{"key": "llm.load.llama.kCacheQuantizationType", "value": {"checked": true, "value": "q8_0"}},
{"key": "load.gpuSplitConfig", "value": {"strategy": "custom", "customRatio": [1, 2]}},
{"key": "llm.load.llama.speculativeDecoding.draftModel", "value": "d"}]}}"""
KOBOLD = b"""{"model_param": "/m.gguf", "contextsize": 8192, "gpulayers": 20, "quantkv": 1,
"threads": 4, "flashattention": true, "usecuda": ["normal", "0"], "tensor_split": [1.0, 2.0],
"draftmodel": "d.gguf",
"draftamount": 4, "lora": ["a.gguf"], "moecpu": 2, "overridetensors": "ffn=CPU", "batchsize": 512,
"gendefaults": "{\\"temperature\\": 0.5, \\"top_k\\": 10}"}"""
PRESETS = tuple(path.read_bytes() for path in sorted(builtin_dir().glob("*.toml")))
MANIFEST = b"""version = 1
made_with = "kvchat 0.1.0, llama-cpp-python 0.3.36"
prompts = ["Name three colours.\\n", "caf\\u00e9"]
system = "Be terse."
raw = false
seed = 4057461134460284503
max_tokens = 40
stop = ["###"]

[hashes]
model = ["d63af87b96e2fd6551e9e7320602f3934f34c41a91004117dd24981571d02f79"]

[preset]
name = "manifest"
model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
n_ctx = 8192
type_k = "q8_0"
n_gpu_layers = "all"
n_threads = 2

[preset.speculation]
predictor = "suffix"

[preset.sampling]
temperature = 0.8
top_k = 40

[[replies]]
finish_reason = "end"
token_ids = [504, 14797, 282]

[[replies]]
finish_reason = "length"
token_ids = []
"""
PRESET = b"""name = "mine"
n_ctx = 8192
n_gpu_layers = 12
tensor_split = [3.0, 1.0]
n_cpu_moe = 2
vram_gib = 8.5
margin_gib = 0.25
lora = ["a.gguf"]
[[tensor_overrides]]
pattern = "ffn_(up|down)"
device = "GPU 0"
[speculation]
n_draft = 4
[sampling]
temperature = 0.5
"""
SETTINGS = b"""[ui]
theme = "kvchat-dark"
[chat]
temperature = 0.7
max_tokens = 100
[cache]
warm = "1GiB"
slots = 2
[models]
folders = ["/models"]
[keys]
reply-stop = "f8"
"""
PROMPTS = b"""{"id": 1, "prompt": "one"}
{"turns": ["two"], "question_id": 2}
{"conversations": [{"from": "human", "value": "three"}]}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "four"}]}]}
"""
BATCH = b"""{"id": "a", "prompt": "one", "max_tokens": 9, "seed": 3, "temperature": 0.5}
{"id": 2, "messages": [{"role": "user", "content": "two"}], "stop": ["END"], "lora": ["a.gguf:0.5"]}
{"prompt": "three", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
"""
ATTACHED = b"""Read this.

Attached file notes.md:
```
a line
```
"""
SCHEMA = b"""{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
"of": {"enum": ["a", "b"]}, "many": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
"required": ["name"], "$defs": {"n": {"type": "integer", "minimum": 0}}}"""
GRAMMAR = b"""root ::= item (", " item)* "\\n"
item ::= [a-z]{1,8} | "\\"" [^"]* "\\""
"""
OLLAMA = (
    b'{"schemaVersion": 2, "layers": [{"mediaType": "application/vnd.ollama.image.model", '
    b'"digest": "sha256:' + b"ab" * 32 + b'", "size": 9}]}'
)
FOLDERS = b'{"downloadsFolder": "/models of others", "language": "en", "n": 3}'
DONE = b"""{"id": "a", "request": "0a1b", "text": "one", "n_tokens": 3}
{"id": 2, "request": "2c3d", "error": "stopped"}
"""
TREE_OF_HUB = b"""[{"type": "file", "path": "m.Q4_K_M.gguf", "size": 9, "oid": "0a",
"lfs": {"oid": "0b", "size": 9, "pointerSize": 130}}, {"type": "directory", "path": "d",
"oid": "0c"}, {"type": "file", "path": "x-00001-of-00002.gguf", "size": 5, "oid": "0d"},
{"type": "file", "path": "x-00002-of-00002.gguf", "size": 5, "oid": "0e"}]"""
FOUND_IN_HUB = b"""[{"id": "b/m-GGUF", "modelId": "b/m-GGUF", "downloads": 7, "tags": ["gguf"],
"lastModified": "2026-01-01T00:00:00.000Z"}, {"id": "c/m", "downloads": null}]"""
MODELS = b"""{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "llamacpp",
"max_model_len": 4096, "meta": {"n_ctx_train": 4096, "n_vocab": 32000}}], "version": "0.11",
"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "model_path": "/m.gguf"}"""
STREAM = b"""data: {"content": "a", "tokens": [5], "stop": false, "id_slot": 0}

: keep
data: {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}

{"message": {"content": "c"}, "done": true}
data: [DONE]

"""
AMOUNTS = (
    b"8GiB",
    b"7.5 GB",
    b"2x24GiB, 8GiB",
    b"32k",
    b"3:1",
    b"30d",
    b"hf:a/b/c.gguf@main",
    URL.encode(),
)
