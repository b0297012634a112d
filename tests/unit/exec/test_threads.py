import os
import sys

import pytest
import torch

from forebay.exec import threads
from forebay.exec.attention_call import Arguments
from forebay.exec.paged_attention_kernel import compile_attention
from forebay.exec.threads import (
    ParallelRegion,
    available_cores,
    configure_threads,
    prepare_environment,
)
from tests.unit.exec.test_paged_attention import SMOLLM2, make_case

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process that has not imported torch, and whose user has set nothing."""
    for name in SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch")
    return monkeypatch


def test_workers_are_told_to_sleep_soon(fresh: pytest.MonkeyPatch) -> None:
    assert prepare_environment()
    assert os.environ["GOMP_SPINCOUNT"] == str(threads.SPIN_ROUNDS)


def test_what_the_user_has_set_stays(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("GOMP_SPINCOUNT", "7")
    assert prepare_environment()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_a_policy_that_the_user_has_set_is_all_there_is(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("OMP_WAIT_POLICY", "active")
    assert prepare_environment()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_it_is_too_late_once_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: os.environ.get(name) for name in SETTINGS}
    assert not prepare_environment()
    assert {name: os.environ.get(name) for name in SETTINGS} == before


def test_threads_are_one_a_core_unless_told() -> None:
    before = torch.get_num_threads()
    try:
        assert configure_threads() == available_cores() == torch.get_num_threads()
        assert configure_threads(1) == 1 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, -2])
def test_less_than_one_thread_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        configure_threads(count)


def test_without_openmp_python_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.exec import paged_attention

    case = make_case(SMOLLM2)
    expected = case.everything()
    monkeypatch.setattr(threads, "_find_openmp_fork", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    without = paged_attention.CpuKernel()
    monkeypatch.setattr(paged_attention, "_kernel", lambda: without)
    assert torch.equal(case.everything(), expected)


def test_every_thread_enters_the_kernel() -> None:
    import numpy as np

    # A call without tokens: each thread takes a number and finds no unit of work.
    counters = np.zeros(2, dtype=np.int64)
    record = np.zeros(len(Arguments._fields), dtype=np.int64)
    record[Arguments._fields.index("counters")] = counters.ctypes.data
    record[Arguments._fields.index("tile_tokens")] = 1
    ParallelRegion(compile_attention())(record.ctypes.data, 3)
    assert counters[0] == 3
