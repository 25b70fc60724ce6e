from app.render import format as fmt


def test_tokens_are_short() -> None:
    assert [fmt.tokens(n) for n in (0, 812, 1234, 99_940, 131_072)] == [
        "0", "812", "1.2k", "99.9k", "131k",
    ]  # fmt: skip


def test_a_context_is_a_power_of_two() -> None:
    assert fmt.context_size(8192) == "8k"
    assert fmt.context_size(5000) == "5.0k"


def test_sizes_have_three_digits() -> None:
    assert [fmt.nbytes(n) for n in (12, 1536, 27 << 20, 180 << 20, 1639 << 20, 200 << 30)] == [
        "12 B", "1.5 KiB", "27 MiB", "180 MiB", "1.6 GiB", "200 GiB",
    ]  # fmt: skip


def test_times_grow_units() -> None:
    assert [fmt.seconds(s) for s in (None, 0.084, 6.12, -3.0, 125.0)] == [
        fmt.NO_VALUE, "0.08 s", "6.1 s", "-3.0 s", "2 min 05 s",
    ]  # fmt: skip


def test_what_is_not_known_is_a_dash() -> None:
    assert {fmt.percent(None), fmt.rate(None), fmt.factor(None)} == {fmt.NO_VALUE}
    assert fmt.share(1, 0) is None


def test_a_gain_has_its_sign_and_never_outgrows_its_column() -> None:
    values = (None, 0.004, -0.42, 1.4, -59.9, 130.0, -3599.0, 7200.0)
    shown = [fmt.gain(value) for value in values]
    assert shown == [
        fmt.NO_VALUE, "+0.00 s", "-0.42 s", "+1.4 s", "-59.9 s", "+2.2 min", "-60.0 min", "+2.0 h",
    ]  # fmt: skip
    assert all(len(text) <= 9 for text in shown)
