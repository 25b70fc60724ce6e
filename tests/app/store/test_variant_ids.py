from app.store.chats import ChatStore
from tests.app.store.conftest import ask, finish, new_chat, reply


def test_each_message_has_its_variants_and_others_without_text_are_left_out(
    store: ChatStore,
) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "hi")
    first = finish(store, reply(store, chat, question), "one")
    empty = reply(store, chat, question)
    last = finish(store, reply(store, chat, question), "two")
    edited = ask(store, chat, None, "hello")
    other = new_chat(store)
    alone = ask(store, other, None, "elsewhere")
    assert store.variant_ids(chat.id) == {
        question.id: [question.id, edited.id],
        edited.id: [question.id, edited.id],
        first.id: [first.id, last.id],
        empty.id: [first.id, empty.id, last.id],
        last.id: [first.id, last.id],
    }
    assert store.variant_ids(other.id) == {alone.id: [alone.id]}
    assert store.variant_ids(99) == {}
