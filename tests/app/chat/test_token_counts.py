from app.chat.token_counts import N_KNOWN, TokenCounts


def test_one_text_is_asked_about_at_a_time_and_answers_are_kept() -> None:
    asked: list[tuple[int, str]] = []
    counts = TokenCounts(lambda key, text: asked.append((key, text)))
    assert counts.of("") == 0
    assert counts.of("one") is None
    assert counts.of("two") is None
    assert [text for _, text in asked] == ["one"], "the second waits for the first"
    counts.take(asked[0][0], 5)
    assert counts.of("one") == 5
    assert counts.of("two") is None
    assert [text for _, text in asked] == ["one", "two"]


def test_an_answer_of_the_model_before_is_not_heard() -> None:
    asked: list[tuple[int, str]] = []
    counts = TokenCounts(lambda key, text: asked.append((key, text)))
    counts.of("text")
    counts.forget()
    counts.of("text")
    counts.take(asked[0][0], 5)
    assert counts.of("text") is None
    counts.take(asked[1][0], 7)
    assert counts.of("text") == 7


def test_the_oldest_answers_go() -> None:
    counts = TokenCounts(lambda key, text: None)
    for i in range(N_KNOWN + 1):
        counts.of(str(i))
        counts.take(i + 1, i)
    assert counts.of(str(N_KNOWN)) == N_KNOWN
    assert counts.of("0") is None
