"""The tests can fail: each way to be wrong is caught by the oracles within a few workloads."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from forebay.core import sizing
from forebay.core.actions import Actions
from forebay.core.blocks import BlockPool, Hold
from forebay.core.draft import StepDraft
from forebay.core.effects import Clone
from forebay.core.kv import KvSpace, Probe
from forebay.core.limits import Limits
from forebay.core.queues import Queues
from forebay.core.scheduler import Scheduler
from forebay.core.swap import HostPool, HostRun
from forebay.core.victims import Victims
from tests.support.driver import play, random_workload

MOST_WORKLOADS = 150

Patch = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, Patch] = {}


def mutation(patch: Patch) -> Patch:
    MUTATIONS[patch.__name__] = patch
    return patch


def replaced(owner: Any, name: str, wrong: Any) -> Patch:
    """A mutation that calls `wrong(right, *args)` instead of `owner.name(*args)`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kw: wrong(right, *args, **kw))

    return patch


def forget_the_blocks(release, kv, seq, last_step):
    seq.table = Hold()


def free_them_twice(release, kv, seq, last_step):
    again = Hold(list(seq.table.blocks))
    release(kv, seq, last_step)
    kv.pool.drop(again)


def publish_a_block_early(publish, kv, seq, computed):
    publish(kv, seq, computed + kv.block_size)


def keep_what_was_overwritten(take, pool, hold, count):
    forget, pool._index.forget = pool._index.forget, lambda block: None
    taken = take(pool, hold, count)
    pool._index.forget = forget
    return taken


def tell_nobody_of_the_clone(grow, kv, request, seq, num_tokens):
    return grow(kv, request, seq, num_tokens)[0], None


def clone_backwards(grow, kv, request, seq, num_tokens):
    blocks, clone = grow(kv, request, seq, num_tokens)
    return blocks, clone and Clone(clone.seq_id, clone.index, clone.dst, clone.src)


def write_into_shared_blocks(shared_block, kv, request, seq):
    return None


def count_hits_as_room(probe, kv, request):
    right = probe(kv, request)
    revived = sum(kv.pool.is_free(block) for found in right.hits for block in found)
    return Probe(right.hits, right.cost - revived)


def skip_a_token_on_return(admit, kv, request, probe):
    admit(kv, request, probe)
    for seq in request.live:
        seq.computed += request.num_preemptions > 0


def swap_in_the_wrong_order(swap_out, kv, request, last_step):
    run, copies = swap_out(kv, request, last_step)
    return HostRun({seq: slots[::-1] for seq, slots in run.tables.items()}, run.slots), copies


def forget_the_host_slots(give_back, pool, run):
    return None


def leave_the_victim_in_the_step(undo, draft, request):
    return None


def refund_twice(undo, draft, request):
    draft.budget += sum(draft.planned.get(seq, 0) for seq in request.live)
    undo(draft, request)


def forget_that_rows_left(leave, actions, seq, kind):
    left = leave(actions, seq, kind)
    actions.batch.add(seq.id)
    return left


def fork_without_sharing(fork, kv, parent, children):
    kv.pool.take(children[0].table, min(len(parent.table.blocks), kv.pool.num_free))


def replay_branches_at_once(waits, request, seq, draft):
    return False


def overspend(ask, request, seq, draft, limits):
    return ask(request, seq, StepDraft(now=draft.now, budget=99, planned=draft.planned), limits)


def nobody_yields(for_growth, victims, asker, shortage, running):
    return []


def accept_what_never_fits(longest, limits, num_prompt, num_branches):
    return longest(limits, num_prompt, num_branches) + 2 * limits.block_size


def last_come_first_served(insert, queues, request):
    insert(queues, request)
    queues.waiting.reverse()


def count_tokens_twice(done, scheduler, event, now):
    for seq in scheduler.rooms.frames._queue[0].sampling:
        seq.known += seq.finish is None
    return done(scheduler, event, now)


def end_and_forget(end_all, scheduler, request, reason, now):
    return end_all(scheduler, request, reason, now)[:1]


for owner, name, wrong in [
    (KvSpace, "release", forget_the_blocks),
    (KvSpace, "release", free_them_twice),
    (KvSpace, "publish", publish_a_block_early),
    (BlockPool, "take", keep_what_was_overwritten),
    (KvSpace, "grow", tell_nobody_of_the_clone),
    (KvSpace, "grow", clone_backwards),
    (KvSpace, "_shared_block", write_into_shared_blocks),
    (KvSpace, "probe", count_hits_as_room),
    (KvSpace, "admit", skip_a_token_on_return),
    (KvSpace, "swap_out", swap_in_the_wrong_order),
    (HostPool, "give_back", forget_the_host_slots),
    (StepDraft, "undo", leave_the_victim_in_the_step),
    (StepDraft, "undo", refund_twice),
    (Actions, "_leave", forget_that_rows_left),
    (KvSpace, "fork", fork_without_sharing),
    (sizing, "_waits_for_leader", replay_branches_at_once),
    (sizing, "ask", overspend),
    (Victims, "for_growth", nobody_yields),
    (Limits, "longest_group", accept_what_never_fits),
    (Queues, "insert", last_come_first_served),
    (Scheduler, "_on_step_done", count_tokens_twice),
    (Scheduler, "_end_all", end_and_forget),
]:
    MUTATIONS[wrong.__name__] = replaced(owner, name, wrong)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_oracles_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    for seed in range(MOST_WORKLOADS):
        limits, jobs = random_workload(random.Random(seed))
        try:
            play(limits, jobs)
        except Exception:
            return
    pytest.fail(f"{MOST_WORKLOADS} workloads went well although: {name.replace('_', ' ')}")


def test_the_same_workloads_go_well_without_a_fault() -> None:
    for seed in range(MOST_WORKLOADS):
        play(*random_workload(random.Random(seed)))
