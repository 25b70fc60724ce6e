from pathlib import Path

from app.chat.history import ChatHistory
from app.store.chats import ChatStore
from engine.configuration import SamplingSettings

WARM = SamplingSettings(temperature=0.9)


def test_a_preset_begins_new_chats_and_one_without_a_prompt_keeps_the_old(tmp_path: Path) -> None:
    with ChatStore(tmp_path / "chats.db") as store:
        history = ChatHistory(store, sampling=SamplingSettings(), system_prompt="Be kind.")
        history.use_preset(WARM, "")
        assert (history.sampling, history.system_prompt) == (WARM, "Be kind.")
        history.use_preset(WARM, "Be brief.")
        assert history.system_prompt == "Be brief."


def test_a_remark_stands_behind_its_message_until_it_is_made_again(tmp_path: Path) -> None:
    with ChatStore(tmp_path / "chats.db") as store:
        history = ChatHistory(store, sampling=SamplingSettings(), system_prompt="")
        first = history.add_question("one", parent_id=None)
        second = history.add_question("two", parent_id=first)
        history.say("hello")
        history.remark(first, "figures")
        history.remark(second, "figures")
        shown = [entry.content for entry in history.entries()]
        assert shown == ["one", "figures", "two", "hello", "figures"]
        assert len({entry.key for entry in history.entries()}) == 5
        history.remark(first, "figures")
        assert [entry.content for entry in history.entries()] == ["one", "two", "hello", "figures"]
        history.say("more")
        assert len({entry.key for entry in history.entries()}) == 5
