from app import format as fmt


def test_tokens_are_short() -> None:
    assert [fmt.tokens(n) for n in (0, 812, 1234, 99_940, 131_072, 10_485_761)] == [
        "0", "812", "1.2k", "99.9k", "131k", "10.5M",
    ]  # fmt: skip


def test_a_context_is_a_power_of_two() -> None:
    assert fmt.context_size(8192) == "8k"
    assert fmt.context_size(5000) == "5.0k"
    sizes = (1280 << 10, 10 << 20, (10 << 20) + (256 << 10), 2047 << 20)
    assert [*map(fmt.context_size, sizes)] == ["1280k", "10M", "10.2M", "2047M"]


def test_a_part_of_a_context_is_counted_as_the_context_is() -> None:
    assert fmt.part_of_context(8100, 8192) == "7.9k/8k"
    assert fmt.part_of_context(4900, 5000) == "4.9k/5.0k"
    assert fmt.part_of_context(1010, 8192) == "1010/8k"


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
    values = (None, 0.004, -0.42, 1.4, -59.9, 60.0, 130.0, -3599.0, 7200.0)
    shown = [fmt.gain(value) for value in values]
    assert shown == [
        fmt.NO_VALUE, "+0.00 s", "-0.42 s", "+1.4 s", "-59.9 s", "+1.0 min", "+2.2 min",
        "-60.0 min", "+2.0 h",
    ]  # fmt: skip
    assert all(len(text) <= 9 for text in shown)


def test_short_times_keep_to_seven_cells() -> None:
    values = (0.0004, 0.012, 0.9, 1.25, 59.9, 125.0, 36_000.0)
    shown = [fmt.short_seconds(value) for value in values]
    assert shown == ["0.4 ms", "12 ms", "900 ms", "1.2 s", "59.9 s", "2.1 min", "10.0 h"]
    assert all(len(text) <= 7 for text in shown)


def test_how_long_ago_keeps_to_six_cells() -> None:
    values = (-3.0, 0.0, 12.0, 200.0, 3599.0, 20_000.0, 9e6)
    shown = [fmt.ago(value) for value in values]
    assert shown == ["now", "now", "12 s", "3 min", "60 min", "6 h", "104 d"]


def test_a_part_of_a_size_has_its_unit_once() -> None:
    assert fmt.nbytes_of(27 << 20, 180 << 20) == "27 of 180 MiB"
    assert fmt.nbytes_of(27 << 20, 1 << 30) == "27 MiB of 1 GiB"


def test_counts_have_their_plural() -> None:
    counts = ((1, "hit"), (2, "miss"), (1000, "state"), (2, "delay"), (2, "reply"))
    shown = [fmt.counted(n, noun) for n, noun in counts]
    assert shown == ["1 hit", "2 misses", "1,000 states", "2 delays", "2 replies"]
