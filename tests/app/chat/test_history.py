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
