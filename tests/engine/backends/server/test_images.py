"""Images are sent to servers that support them, in the form of each protocol."""

import base64
from pathlib import Path

import pytest
from PIL.Image import open as open_image

from engine.backends.server.session import ServerSession
from engine.configuration import Configuration
from engine.images import ImageError, read_image
from engine.requests import Cancellation, GenerationRequest, Message
from tests.support.filled_projectors import png
from tests.support.hostile_language_server import Kind, serving


@pytest.mark.parametrize("kind", ["llama-server", "vLLM", "Ollama", "OpenAI"])
def test_an_image_goes_as_the_protocol_has_it(kind: Kind, tmp_path: Path) -> None:
    open_image(png(tmp_path / "a.png")).save(tmp_path / "a.webp")
    image = read_image(tmp_path / "a.webp", "a.png")
    assert image.portable().startswith(b"\x89PNG"), "a WebP is what some do not read"
    data = base64.b64encode(image.portable()).decode()
    asked = Message("user", f"what is {image.reference} <here>?")
    answer = Message("assistant", f"it is {image.reference}")
    request = GenerationRequest((asked, answer, Message("user", "and?")))
    with serving() as server:
        server.kind, server.sees_images = kind, True
        session = ServerSession(Configuration.at_server(server.url))
        assert session.loaded.blindness == ""
        session.begin(request, Cancellation())
        while session.step():
            pass
        session.close()
        sent = next(body for path, _, body in reversed(server.asked) if "stream" in body)
    if kind == "llama-server":
        text = f"<user>what is <here> ?<assistant>{answer.content}<user>and?<assistant>"
        assert sent["prompt"] == {"prompt_string": text, "multimodal_data": [data]}
        return
    messages = sent["messages"]
    assert isinstance(messages, list)
    assert messages[1]["content"] == answer.content
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    texts = ({"type": "text", "text": text} for text in ("what is ", " <here>?"))
    assert messages[0]["content"] == [next(texts), url, next(texts)]


@pytest.mark.parametrize("kind", ["llama-server", "vLLM", "OpenAI"])
def test_a_server_without_declared_support_gets_no_images(kind: Kind, tmp_path: Path) -> None:
    image = read_image(png(tmp_path / "a.png"), "a.png")
    with serving() as server:
        server.kind = kind
        session = ServerSession(Configuration.at_server(server.url))
        with pytest.raises(ImageError, match=r"a\.png"):
            session.begin(GenerationRequest((Message("user", image.reference),)), Cancellation())
        assert session.loaded.blindness
        session.close()
