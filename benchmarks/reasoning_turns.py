"""Tokens that are read again in each turn of a chat whose template strips the thinking.

`python -m benchmarks.reasoning_turns MODEL.gguf [--turns 4] [--sentences 12]` copies a model with a
template that opens the thinking itself and leaves it out of earlier turns (DeepSeek R1, Qwen 3),
and asks one question after another. Each reply is the same thinking and answer on every machine;
only the tokens that the prompt costs are told, and of which tier the rest came.
"""

import argparse
import tempfile
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from engine.cache.report import CacheSettings
from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import Finished, PromptReady
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% endif %}"
)
THOUGHT = "The user wants a short answer, so I weigh what matters and leave out the rest. "
ANSWER = "Here is what matters: keep it simple, write it down, and look at it again tomorrow. " * 4
SYSTEM = "You answer briefly and in plain words, and you say so where you do not know. " * 8
KEY = "tokenizer.chat_template"


def with_template(source: Path, target: Path) -> None:
    """Copy a model with `TEMPLATE` in the place of its own."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", KEY):
            continue
        kind = field.types[0]
        of = field.types[-1] if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=of)
    writer.add_chat_template(TEMPLATE)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def turns(engine: BlockingClient, n_turns: int, thought: str) -> None:
    """Print one row a turn, each with the same thinking."""
    messages = [Message("system", SYSTEM)]
    print(f"{'turn':>5}{'prompt':>8}{'read':>7}{'hot':>7}{'warm':>7}  note")
    for turn in range(n_turns):
        messages.append(Message("user", f"Question {turn}: what should I do first about it?"))
        said = engine_reply(engine, messages, f"{thought}</think>\n\n{ANSWER}")
        messages.append(said)


def engine_reply(engine: BlockingClient, messages: list[Message], text: str) -> Message:
    """Ask for one reply, which goes on behind a text, and print what its prompt cost."""
    asked = GenerationRequest(tuple(messages), max_tokens=1, owner="chat:1")
    ready = None
    for event in engine.reply(asked):
        if isinstance(event, PromptReady):
            ready = event
    assert ready is not None
    turn = sum(message.role == "user" for message in messages)
    places = f"{ready.n_hot:>7}{ready.n_warm:>7}"
    print(f"{turn:>5}{ready.n_prompt:>8}{ready.n_read:>7}{places}  {ready.note or ''}")
    whole = GenerationRequest(tuple(messages), max_tokens=2, owner="chat:1", continues_text=text)
    finished = next(event for event in engine.reply(whole) if isinstance(event, Finished))
    return Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)


def main() -> None:
    """Copy the model, load the copy and ask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=12, help="of each thinking, of 16 tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "thinks.gguf"
        with_template(options.model, copy)
        client = WorkerClient(log_path=Path(folder) / "log", cache=CacheSettings(cold_bytes=0))
        engine = BlockingClient(client, limit_s=600)
        try:
            off = SpeculationSettings(predictor=PredictorName.OFF)
            engine.load(Configuration(copy, 4096, speculation=off))
            turns(engine, options.turns, THOUGHT * options.sentences)
        finally:
            client.close()


if __name__ == "__main__":
    main()
