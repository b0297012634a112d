from forebay.core.draft import StepDraft
from forebay.core.effects import Clone, SwapIn, SwapOut
from forebay.core.limits import Fencing
from forebay.core.rooms import Rooms
from tests.unit.core.parts import limits, request, running

HASHES = tuple(bytes([at]) for at in range(4))


def rooms_of(**more: object) -> Rooms:
    return Rooms.build(limits(**more))


def test_growth_is_what_the_table_lacks() -> None:
    rooms = rooms_of()
    req = running(rooms, request(p=6), computed=6, known=7)
    (seq,) = req.sequences
    assert [rooms.kv.missing(req, seq, count) for count in (0, 1, 2, 3, 6, 7)] == [0, 0, 0, 1, 1, 2]
    blocks, clone = rooms.kv.grow(req, seq, 3)
    assert (len(blocks), clone) == (1, None)
    assert seq.table.blocks[-1:] == blocks
    assert rooms.kv.missing(req, seq, 3) == 0


def test_the_last_branch_writes_in_place_and_the_others_get_a_clone() -> None:
    rooms = rooms_of()
    req = running(rooms, request(p=6, num_branches=3), computed=6)
    first, second, third = req.sequences
    shared = first.table.blocks[1]
    clones = []
    for seq in (first, second, third):
        assert rooms.kv.missing(req, seq, 1) == (seq is not third)
        blocks, clone = rooms.kv.grow(req, seq, 1)
        assert blocks == []
        clones.append(clone)
    assert clones[2] is None
    assert clones[:2] == [Clone(seq.id, 1, shared, seq.table.blocks[1]) for seq in (first, second)]
    assert third.table.blocks[1] == shared
    assert len({seq.table.blocks[0] for seq in req.sequences}) == 1


def test_a_probe_never_covers_the_last_known_token() -> None:
    rooms = rooms_of()
    before = running(rooms, request(0, p=8, block_hashes=HASHES[:2]), computed=8)
    rooms.kv.publish(before.sequences[0], 8)
    probe = rooms.kv.probe(request(1, p=8, block_hashes=HASHES[:2]))
    assert (len(probe.hits[0]), probe.cost) == (1, 1)
    probe = rooms.kv.probe(request(1, p=9, block_hashes=HASHES[:2]))
    assert (len(probe.hits[0]), probe.cost) == (2, 1)
    rooms.kv.release(before.sequences[0], None)
    assert rooms.kv.probe(request(1, p=9, block_hashes=HASHES[:2])).cost == 3


def test_without_a_prefix_cache_nothing_is_found() -> None:
    rooms = rooms_of(prefix_caching=False)
    before = running(rooms, request(0, p=8, block_hashes=HASHES[:2]), computed=8)
    rooms.kv.publish(before.sequences[0], 8)
    assert rooms.kv.probe(request(1, p=9, block_hashes=HASHES[:2])).hits == [[]]


def test_filling_a_table_does_not_evict_the_hits_of_the_same_request() -> None:
    rooms = rooms_of(num_blocks=4)
    before = running(rooms, request(0, p=12, block_hashes=HASHES[:3]), computed=12)
    rooms.kv.publish(before.sequences[0], 12)
    rooms.kv.release(before.sequences[0], None)
    after = request(1, p=13, block_hashes=HASHES[:3])
    probe = rooms.kv.probe(after)
    assert probe.cost == 4
    rooms.kv.admit(after, probe)
    (seq,) = after.sequences
    assert seq.table.blocks[:3] == probe.hits[0]
    assert (seq.computed, seq.published, rooms.kv.pool.num_free) == (12, 3, 0)


def test_only_full_and_known_blocks_are_published() -> None:
    rooms = rooms_of()
    req = running(rooms, request(p=10, block_hashes=HASHES[:2]), computed=0)
    (seq,) = req.sequences
    for computed, published in [(3, 0), (4, 1), (10, 2), (12, 2)]:
        rooms.kv.publish(seq, computed)
        assert (seq.published, len(rooms.kv.index)) == (published, published)


def test_fenced_release_waits_for_the_step_and_others_do_not() -> None:
    for fencing, last_step, free in [
        (Fencing.IN_FLIGHT, 2, 6),
        (Fencing.IN_FLIGHT, None, 8),
        (Fencing.OFF, 2, 8),
    ]:
        rooms = rooms_of(fencing=fencing)
        req = running(rooms, request(p=6), computed=6)
        rooms.kv.release(req.sequences[0], last_step)
        assert rooms.kv.pool.num_free == free
        rooms.kv.fences.drop_until(2)
        assert rooms.kv.pool.num_free == 8


def test_a_group_is_swapped_with_its_shared_blocks_once_and_they_are_shared_again() -> None:
    rooms = rooms_of(num_host_blocks=4)
    req = running(rooms, request(p=6, num_branches=2), computed=6, known=7)
    rooms.kv.grow(req, req.sequences[0], 1)
    req.sequences[0].computed = 7
    run, out = rooms.kv.swap_out(req, None)
    assert len(out) == len(run.slots) == 3
    assert all(isinstance(copy, SwapOut) for copy in out)
    assert rooms.kv.pool.num_free == 8
    back = rooms.kv.swap_in(req, run)
    first, second = (seq.table.blocks for seq in req.sequences)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert {type(copy) for copy in back} == {SwapIn}
    assert {(copy.slot, copy.block) for copy in back} == set(
        zip((*run.tables[0], run.tables[1][1]), (*first, second[1]), strict=True)
    )
    assert (rooms.kv.host.num_free, rooms.kv.pool.num_free) == (4, 5)


def test_what_swapping_in_costs_includes_clones_and_the_next_token() -> None:
    rooms = rooms_of(num_host_blocks=8)
    req = running(rooms, request(p=6, num_branches=3), computed=6, known=7)
    run, _ = rooms.kv.swap_out(req, None)
    assert rooms.kv.swap_in_cost(req, run) == 2 + 2
    rooms = rooms_of(num_host_blocks=8)
    req = running(rooms, request(p=8), computed=8, known=9)
    run, _ = rooms.kv.swap_out(req, None)
    assert rooms.kv.swap_in_cost(req, run) == 2 + 1


def test_yielding_frees_what_nobody_else_holds() -> None:
    rooms = rooms_of()
    first = running(rooms, request(0, p=8, block_hashes=HASHES[:2]), computed=8)
    rooms.kv.publish(first.sequences[0], 8)
    second = running(rooms, request(1, p=9, block_hashes=HASHES[:2]), computed=8)
    assert (rooms.kv.num_freed_by([first]), rooms.kv.num_freed_by([second])) == (0, 1)


def test_undo_gives_back_tokens_and_forgets_growth() -> None:
    rooms = rooms_of()
    req = running(rooms, request(p=6), computed=6, known=7)
    (seq,) = req.sequences
    draft = StepDraft.start(limits(max_num_batched_tokens=16), 0)
    draft.add_growth(seq, *rooms.kv.grow(req, seq, 3))
    draft.add(seq, 3)
    assert (draft.budget, draft.planned, list(draft.grown)) == (13, {seq: 3}, [seq])
    draft.undo(req)
    draft.undo(req)
    assert (draft.budget, draft.planned, draft.grown) == (16, {}, {})
