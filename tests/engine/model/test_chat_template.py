import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
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
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.2)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="ran longer than"):
        ChatTemplate(loop).render(HELLO)
    with ThreadPoolExecutor() as pool:
        with pytest.raises(TemplateError, match="ran longer than"):
            pool.submit(ChatTemplate(loop).render, HELLO).result()
        usual = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
        assert pool.submit(usual.render, HELLO).result() == usual.render(HELLO)
        assert pool.submit(sys.gettrace).result() is None


DOUBLED = "{% set n = namespace(a='a' * 1000000) %}{% for i in range(20) %}{% set n.a = EXPR %}"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems bound no address space")
@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a'.center(600000000) }}",
        "{{ 'a'.ljust(600000000) }}",
        "{{ 'a'.rjust(600000000) }}",
        "{{ 'a'.zfill(600000000) }}",
        "{{ '\\t'.expandtabs(600000000) }}",
        "{{ '%600000000d' % 1 }}",
        "{{ '{:600000000}'.format(1) }}",
        "{{ '%600000000d' | format(1) }}",
        "{{ 'a' | center(600000000) }}",
        "{{ ('a' * 1000000).replace('a', 'a' * 1000) }}",
        "{{ ('a' * 1000000) | replace('a', 'a' * 1000) }}",
        "{{ ('a' * 1000000).join(['a'] * 1000) }}",
        "{{ (['a' * 1000000] * 1000) | join }}",
        "{{ ('a\\n' * 500000) | indent(1000000) }}",
        "{{ [1] | tojson(indent=600000000) }}",
        "{{ [1] | batch(600000000, 'a') | list }}",
        DOUBLED.replace("EXPR", "n.a ~ n.a") + "{% endfor %}",
        DOUBLED.replace("EXPR", "n.a + n.a") + "{% endfor %}",
        DOUBLED.replace("EXPR", "[n.a, n.a] | join") + "{% endfor %}",
        DOUBLED.replace("EXPR", "'%s%s' % (n.a, n.a)") + "{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(2000) %}{{ a }}{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(20) %}{{ a }}{% endfor %}",
    ],
)
def test_no_template_fills_the_memory(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 29))
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 60.0)
    before = resource.getrlimit(resource.RLIMIT_AS), peak()
    template = ChatTemplate(text)
    with pytest.raises(TemplateError, match=r"needs more than (256 MiB|a prompt of)|would make"):
        template.render(HELLO)
    assert resource.getrlimit(resource.RLIMIT_AS) == before[0]
    assert peak() - before[1] < 400 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems bound no address space")
def test_another_thread_may_allocate_while_a_template_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 << 30))
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.5)
    before = resource.getrlimit(resource.RLIMIT_AS)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with ThreadPoolExecutor() as pool:
        rendering = pool.submit(ChatTemplate(loop).render, HELLO)
        while resource.getrlimit(resource.RLIMIT_AS) == before:
            assert not rendering.done()
        assert len(bytearray(400 << 20)) == 400 << 20
        assert isinstance(rendering.exception(), TemplateError)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_templates_that_are_rendered_at_once_leave_no_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    template = ChatTemplate("{% for i in range(5000) %}{{ i }}{% endfor %}")
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(template.render, [HELLO] * 40))) == 1
    assert resource.getrlimit(resource.RLIMIT_AS) == before


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
    said = [Message("user", "what?"), Message("assistant", "that"), Message("user", "why?")]
    rendered = ChatTemplate(text).render(said)
    assert rendered == "User: what?<end>Assistant: that<end>User: why?<end>Assistant:"
