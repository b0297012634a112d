import pytest

from forebay.core.policies import StartRule
from forebay.core.presets import ratio
from forebay.core.request import Request
from forebay.core.rooms import Rooms
from forebay.core.token_ratio import TokenRatio, generated
from tests.unit.core.parts import limits, request, running


def rooms_of(num_blocks: int = 8, conservativeness: float = 1.0) -> tuple[Rooms, TokenRatio]:
    rooms = Rooms.build(ratio(limits(num_blocks=num_blocks), conservativeness=conservativeness))
    assert rooms.limits.rules.start is StartRule.TOKEN_RATIO
    assert isinstance(rooms.outlook, TokenRatio)
    return rooms, rooms.outlook


def decoding(rooms: Rooms, req: Request, num_output: int) -> Request:
    prompt = req.spec.num_prompt
    return running(rooms, req, computed=prompt + num_output - 1, known=prompt + num_output)


def test_it_starts_high_and_sinks_to_a_floor_in_600_steps() -> None:
    _, share = rooms_of()
    assert share.ratio == 0.7
    share.note_decoded()
    assert share.ratio == pytest.approx(0.7 - 0.7 * 0.86 / 600)
    for _ in range(598):
        share.note_decoded()
    assert share.ratio > 0.7 * 0.14
    for _ in range(5):
        share.note_decoded()
    assert share.ratio == pytest.approx(0.7 * 0.14)
    share.note_idle()
    assert share.ratio == 0.7


def test_conservativeness_scales_it_up_to_one() -> None:
    assert rooms_of(conservativeness=0.5)[1].ratio == 0.35
    assert rooms_of(conservativeness=3.0)[1].ratio == 1.0


def test_a_retraction_sets_it_to_what_those_who_stay_need() -> None:
    rooms, share = rooms_of(num_blocks=64)
    kept = [decoding(rooms, request(1, m=100), 30), decoding(rooms, request(2, m=60), 10)]
    assert [generated(req) for req in kept] == [30, 10]
    share.note_retracted(kept)
    assert share.ratio == (40 + 20 * 2) / 160
    share.note_retracted(kept[:1] * 9)  # never above one
    assert share.ratio == pytest.approx((30 * 9 + 20 * 9) / 900)
    share.note_retracted([decoding(rooms, request(3, m=10), 2)])
    assert share.ratio == 1.0


@pytest.mark.parametrize(("m", "starts"), [(11, True), (12, False)])
def test_a_share_of_what_others_may_generate_is_kept_free(m: int, starts: bool) -> None:
    rooms, share = rooms_of(num_blocks=8)
    decoding(rooms, request(1, p=6, m=21), 1)  # 2 of 8 blocks; 20 tokens to come
    share.ratio = 0.6  # 12 believed: of 24 free ones 12 are left
    assert share.pays(request(2, p=4, m=m), cost=0) is starts


def test_who_has_not_generated_yet_counts_in_full() -> None:
    rooms, share = rooms_of(num_blocks=8)
    running(rooms, request(1, p=6, m=20), computed=2)
    share.ratio = 0.1
    assert not share.pays(request(2, p=4, m=4), cost=0)
    assert share.pays(request(2, p=4, m=3), cost=0)


def test_who_cannot_stop_early_is_played_forward_to_the_end_of_each() -> None:
    rooms, share = rooms_of(num_blocks=8)
    decoding(rooms, request(1, p=11, m=9, runs_to_limit=True), 1)  # holds 12, 8 to come
    # 20 tokens free; both grow 8: 4 left, then 12 + 8 come back
    assert share.pays(request(2, p=8, m=8, runs_to_limit=True), cost=0)
    assert share.pays(request(2, p=8, m=20, runs_to_limit=True), cost=0)
    assert not share.pays(request(2, p=8, m=10, runs_to_limit=True), cost=3)
    share.note_stopped(3)
    assert share.ratio == 0.7


def test_branches_count_each() -> None:
    rooms, share = rooms_of(num_blocks=8)
    decoding(rooms, request(1, p=4, m=2), 1)  # 7 blocks free, less 0.7 of one token
    assert share.pays(request(2, p=4, m=9, num_branches=3), cost=0)
    assert not share.pays(request(2, p=4, m=10, num_branches=3), cost=0)
