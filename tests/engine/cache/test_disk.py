"""Background writes: what goes to disk, when, and what happens when the disk refuses."""

from engine.cache.segments import unpack
from tests.engine.cache.made_up import MemoryDisk, make_cache, put, restored, work
from tests.support.clock import Clock

A = list(range(100, 150))
B = list(range(200, 250))
C = list(range(300, 350))


def first_tokens(disk: MemoryDisk) -> set[int]:
    """The first tokens of the sequences on disk."""
    return {unpack(state.packed)[0] for state in disk.segments()}


def test_parents_are_written_before_their_children_and_the_newest_sequence_first():
    disk = MemoryDisk()
    cache = make_cache(disk)
    put(cache, A[:20])
    put(cache, A[:30])
    put(cache, B[:40])
    put(cache, A)
    work(cache)
    assert disk.log == ["write 0-20", "write 20-30", "write 30-50", "write 0-40"]


def test_a_full_disk_is_reported_once_and_tried_again_later():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock)
    disk.is_full = True
    put(cache, A)
    put(cache, B)
    for _ in range(3):
        work(cache)
        clock.at += 3
    assert [note.is_problem for note in cache.report().notes] == [True]
    assert restored(cache, A) == 50
    disk.is_full = False
    work(cache)
    assert not disk.files
    clock.at += 60
    work(cache)
    assert len(disk.files) == 2
    assert [note.is_problem for note in cache.report().notes] == [False]


def test_over_budget_the_segment_of_lowest_worth_is_deleted():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock, warm_bytes=0, cold_bytes=100 * 4)
    for line in (A, B):
        put(cache, line)
        work(cache)
        clock.at += 10
    assert restored(cache, A) == 50
    put(cache, C)
    work(cache)
    assert first_tokens(disk) == {100, 300}
    assert cache.report().counts.n_evictions == 1
    assert restored(cache, B) == 0


def test_a_smaller_budget_holds_from_the_next_start_on():
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A)
    put(first, B)
    first.close(1.0)
    second = make_cache(disk, cold_bytes=60 * 4)
    work(second)
    assert disk.nbytes == 50 * 4


def test_uses_and_owners_outlive_a_restart():
    disk, clock = MemoryDisk(), Clock()
    first = make_cache(disk, clock=clock)
    put(first, A, owner="chat:1")
    work(first)
    clock.at += 100
    assert restored(first, A) == 50
    first.match(A, owner="chat:2").release()
    first.close(1.0)
    (entry,) = make_cache(disk).report().entries
    assert entry.n_uses == 1
    assert entry.used_at == clock.at
    assert entry.owners == ("chat:1", "chat:2")


def test_a_segment_without_its_parent_is_deleted():
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A[:20])
    put(first, A[:35])
    put(first, A)
    first.close(1.0)
    lost = next(key for key, (state, _) in disk.files.items() if state.start == 20)
    del disk.files[lost]
    second = make_cache(disk)
    assert second.report().notes
    work(second)
    assert [state.end for state in disk.segments()] == [20]


def test_a_chat_that_is_forgotten_while_it_is_written_leaves_no_file():
    disk = MemoryDisk()
    cache = make_cache(disk)
    write = disk.write

    def interrupted(namespace, state, payload):
        cache.forget("chat:1")
        write(namespace, state, payload)

    disk.write = interrupted
    put(cache, A, owner="chat:1")
    work(cache)
    assert disk.log == ["write 0-50", "delete 0-50"]


def test_an_unreadable_folder_disables_the_cold_tier_only():
    disk = MemoryDisk()
    disk.is_unreadable = True
    cache = make_cache(disk)
    assert [note.is_problem for note in cache.report().notes] == [True]
    put(cache, A)
    assert restored(cache, A) == 50


def test_states_on_a_full_disk_are_restored():
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A)
    first.close(1.0)
    disk.is_full = True
    second = make_cache(disk)
    assert restored(second, A) == 50
    assert [note.is_problem for note in second.report().notes] == [True]


def test_a_state_that_does_not_fit_on_disk_stays_in_ram_and_is_reported_once():
    disk = MemoryDisk()
    cache = make_cache(disk, cold_bytes=60 * 4)
    put(cache, A, owner="chat:1")
    work(cache)
    (entry,) = cache.report().entries
    cache.pin(entry.key)
    put(cache, B)
    put(cache, C)
    work(cache)
    assert first_tokens(disk) == {100}
    assert restored(cache, B) == restored(cache, C) == 50
    assert len(cache.report().notes) == 1
    cache.unpin(entry.key)
    put(cache, [*range(400, 440)])
    work(cache)
    assert first_tokens(disk) == {400}


def test_ram_stays_within_its_budget_while_the_disk_refuses_writes():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock, warm_bytes=100 * 4)
    disk.is_full = True
    for line in (A, B, C):
        clock.at += 1
        put(cache, line)
        work(cache)
    assert cache.report().tiers[0].nbytes <= 100 * 4
    assert restored(cache, C) == 50
    assert cache.report().counts.n_evictions == 1


def test_a_chat_is_deleted_from_a_disk_that_is_too_full_to_write():
    disk = MemoryDisk()
    cache = make_cache(disk)
    put(cache, A, owner="chat:1")
    work(cache)
    disk.is_full = True
    put(cache, B)
    work(cache)
    disk.is_full = False
    cache.forget("chat:1")
    assert not disk.files


def test_a_matched_file_is_not_evicted_from_disk():
    disk = MemoryDisk()
    cache = make_cache(disk, warm_bytes=0, cold_bytes=100 * 4)
    put(cache, A, seconds=0.001)
    work(cache)
    with cache.match(A) as match:
        for line in (B, C):
            put(cache, line)
            work(cache)
        assert len(cache.read(match)) == 1
        assert match.n_tokens == 50


def test_the_start_of_an_unwritten_sequence_is_not_evicted_from_disk():
    disk = MemoryDisk()
    cache = make_cache(disk, cold_bytes=50 * 4)
    put(cache, A[:20], seconds=0.001)
    put(cache, B[:30])
    work(cache)
    put(cache, A)
    work(cache)
    assert restored(make_cache(disk), A) == 50


def test_a_pin_during_the_write_is_saved():
    disk = MemoryDisk()
    cache = make_cache(disk)
    write = disk.write

    def interrupted(namespace, segment, payload):
        cache.pin(segment.key)
        write(namespace, segment, payload)

    disk.write = interrupted
    put(cache, A)
    work(cache)
    (entry,) = make_cache(disk).report().entries
    assert entry.is_pinned


def test_a_state_whose_start_was_evicted_from_disk_does_not_exceed_the_ram_budget():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock, warm_bytes=60 * 4, cold_bytes=50 * 4)
    put(cache, A[:20], seconds=0.001)
    work(cache)
    put(cache, B[:40])
    work(cache)
    assert first_tokens(disk) == {200}
    put(cache, A)
    for _ in range(2):
        clock.at += 5
        work(cache)
    assert cache.report().tiers[0].nbytes <= 60 * 4
