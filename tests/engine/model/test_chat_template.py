from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import TemplateError
from engine.model import chat_template
from engine.model.chat_template import ChatTemplate
from engine.requests import Message

HELLO = [Message("user", "hello")]


def test_a_template_is_rendered_with_its_tokens() -> None:
    text = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert ChatTemplate(text, bos="<s>", eos="</s>").render(HELLO) == "<s>hello</s>"


def test_a_model_without_a_template_gets_a_transcript_and_its_stop_string() -> None:
    template = ChatTemplate(None)
    assert template.render(HELLO) == "User: hello\n\nAssistant:"
    assert template.stop == ("\nUser:",)
    assert ChatTemplate("x").stop == ()


def test_a_template_may_refuse_messages_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(HELLO)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].system('true') }}",
        "{{ 'a' * 100000000000 }}",
        "{{ 10 ** 100000000 }}",
        "{{ range(999999999) }}",
    ],
)
def test_the_sandbox_holds(text: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(text).render(HELLO)


def test_a_template_that_loops_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.01)
    loop = "{% for a in range(3000) %}{% for b in range(5000) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="ran longer than"):
        ChatTemplate(loop).render(HELLO)


def test_a_prompt_is_bounded() -> None:
    loop = "{% set a = 'a' * 1000000 %}{% for i in range(99) %}{{ a }}{% endfor %}"
    with pytest.raises(TemplateError, match="characters"):
        ChatTemplate(loop).render(HELLO)


def test_templates_are_rendered_in_several_threads_at_once() -> None:
    template = ChatTemplate("{% for i in range(5000) %}{{ i }}{% endfor %}")
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(template.render, [HELLO] * 40))) == 1


def test_text_that_is_no_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="not valid Jinja"):
        ChatTemplate("{% for %}")


def test_a_template_that_reads_parts_only_is_given_parts() -> None:
    text = (
        "{% for message in messages %}{{ message['role'] | capitalize }}:"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'text' %} {{ part['text'] }}{% endif %}"
        "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    )
    messages = [Message("user", "what?"), Message("assistant", "that"), Message("user", "why?")]
    rendered = ChatTemplate(text).render(messages)
    assert rendered == "User: what?<end>Assistant: that<end>User: why?<end>Assistant:"
