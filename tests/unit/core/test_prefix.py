import pytest

from forebay.core.prefix import PrefixIndex


@pytest.mark.parametrize(
    ("asked", "most", "found"),
    [
        ([b"a", b"b", b"c"], 9, [0, 1]),
        ([b"a", b"b"], 1, [0]),
        ([b"a", b"x", b"b"], 9, [0]),
        ([b"x"], 9, []),
        ([b"a"], 0, []),
        ([b"a"], -1, []),
    ],
)
def test_probe_finds_the_longest_known_prefix(
    asked: list[bytes], most: int, found: list[int]
) -> None:
    index = PrefixIndex()
    index.publish(0, b"a")
    index.publish(1, b"b")
    assert index.probe(asked, most) == found


def test_of_two_blocks_with_equal_content_the_first_is_found() -> None:
    index = PrefixIndex()
    assert index.publish(3, b"a")
    assert not index.publish(4, b"a")
    assert not index.publish(3, b"b")
    assert index.probe([b"a"], 1) == [3]
    assert not index.is_published(4)


def test_a_forgotten_block_is_not_found_and_its_content_can_be_published_again() -> None:
    index = PrefixIndex()
    index.publish(3, b"a")
    index.forget(3)
    index.forget(3)
    assert index.probe([b"a"], 1) == []
    assert index.publish(4, b"a")
    assert len(index) == 1
