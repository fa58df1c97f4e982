"""Who gets a place in the batch and when, and that nothing is ever lost."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.scheduler import (
    PART_TOKENS,
    Chunk,
    Decode,
    Limits,
    Scheduler,
    Sequence,
    Step,
    refuse_too_long,
)

LIMITS = Limits(slots=2, step_tokens=16, blocks=8, tokens_per_block=4)


def sequence(ticket: int, prompt: int, new: int, beams: int = 1) -> Sequence:
    return Sequence(ticket, GenerationRequest((7,) * prompt, new, beam_width=beams))


def planned(scheduler: Scheduler) -> Step:
    step = scheduler.plan()
    assert step is not None
    return step


def choose(scheduler: Scheduler, step: Step) -> None:
    """What the leader does after a step: a token for each decoded row and each prompt read to its end."""
    for decode in step.decodes:
        scheduler.running[decode.slot].new_tokens.append(1)
    for chunk in step.chunks:
        if chunk.end == len(scheduler.running[chunk.slot].request.prompt):
            scheduler.running[chunk.slot].new_tokens.append(1)


def test_an_idle_scheduler_plans_nothing() -> None:
    assert Scheduler(LIMITS).plan() is None


def test_a_prompt_is_read_then_continued_at_its_own_position() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequence(1, prompt=3, new=5))
    first = planned(scheduler)
    (admission,) = first.admitted
    assert len(admission.blocks) == 1
    assert len(admission.blocks[0]) == 2  # 8 tokens in blocks of 4
    assert first.chunks == (Chunk(admission.slot, 0, 3),)
    choose(scheduler, first)
    second = planned(scheduler)
    assert second == Step(decodes=(Decode(admission.slot, 1, 3),))


def test_a_newcomer_joins_while_another_decodes() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequence(1, prompt=3, new=5))
    choose(scheduler, planned(scheduler))
    scheduler.add(sequence(2, prompt=2, new=5))
    step = planned(scheduler)
    assert len(step.decodes) == 1
    assert [chunk.tokens for chunk in step.chunks] == [2]


def test_requests_wait_for_a_slot_and_for_blocks_in_order_of_arrival() -> None:
    scheduler = Scheduler(LIMITS)
    big, second, small = sequence(1, 8, 12), sequence(2, 8, 8), sequence(3, 1, 1)
    for item in (big, second, small):
        scheduler.add(item)
    assert [admission.slot for admission in planned(scheduler).admitted] == [0]
    # 5 of 8 blocks are taken; the second needs 4. The small one would fit, but does not overtake it.
    assert scheduler.waiting == 2
    scheduler.end(big)
    step = planned(scheduler)
    assert step.released == (0,)
    assert len(step.admitted) == 2
    assert scheduler.waiting == 0


def test_a_long_prompt_is_read_in_chunks_while_others_decode() -> None:
    scheduler = Scheduler(Limits(slots=2, step_tokens=8, blocks=32, tokens_per_block=4))
    scheduler.add(sequence(1, prompt=2, new=9))
    choose(scheduler, planned(scheduler))
    scheduler.add(sequence(2, prompt=20, new=4))
    sizes = []
    for _ in range(3):
        step = planned(scheduler)
        assert len(step.decodes) == 1
        sizes += [(chunk.start, chunk.tokens) for chunk in step.chunks]
        choose(scheduler, step)
    assert sizes == [(0, 7), (7, 7), (14, 6)]
    assert len(planned(scheduler).decodes) == 2


def test_parts_of_long_prompts_and_short_prompts_take_turns_while_others_decode() -> None:
    """A step with both would keep the streams waiting for both."""
    scheduler = Scheduler(Limits(slots=9, step_tokens=9999, blocks=99, tokens_per_block=64))
    scheduler.add(sequence(1, prompt=2, new=99))
    choose(scheduler, planned(scheduler))
    scheduler.add(sequence(2, prompt=3 * PART_TOKENS, new=99))
    steps = []
    for ticket in range(3, 9):
        scheduler.add(sequence(ticket, prompt=9, new=99))
        step = planned(scheduler)
        steps.append({chunk.tokens for chunk in step.chunks})
        choose(scheduler, step)
    assert steps == [{PART_TOKENS}, {9}, {PART_TOKENS}, {9}, {PART_TOKENS}, {9}]
    assert len(planned(scheduler).decodes) == 8


def test_padded_prompts_stay_within_the_step() -> None:
    scheduler = Scheduler(Limits(slots=4, step_tokens=16, blocks=99, tokens_per_block=4))
    for ticket, prompt in enumerate((2, 8, 2, 2)):
        scheduler.add(sequence(ticket, prompt, new=2))
    # Two rows of 8 columns make 16; a third would make 24.
    assert [chunk.tokens for chunk in planned(scheduler).chunks] == [2, 8]
    assert [chunk.tokens for chunk in planned(scheduler).chunks] == [2, 2]


def test_beams_get_blocks_each_and_advance_beside_the_batch() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequence(1, prompt=3, new=5, beams=3))
    step = planned(scheduler)
    assert [len(blocks) for blocks in step.admitted[0].blocks] == [2, 2, 2]
    assert len({block for blocks in step.admitted[0].blocks for block in blocks}) == 6
    assert (step.beams, step.chunks, step.decodes) == ((0,), (), ())


def test_what_can_never_fit_is_refused() -> None:
    refuse_too_long(sequence(1, 16, 16).request, LIMITS)
    with pytest.raises(RequestFailed, match="needs 36 tokens of the KV cache, which holds 32"):
        refuse_too_long(sequence(1, 17, 16).request, LIMITS)


@pytest.mark.parametrize("seed", range(20))
def test_after_any_history_all_places_are_free_again(seed: int) -> None:
    draw = random.Random(seed)
    scheduler = Scheduler(Limits(slots=5, step_tokens=32, blocks=30, tokens_per_block=4))
    alive: dict[Hashable, Sequence] = {}
    held: set[int] = set()
    for ticket in range(200):
        if draw.random() < 0.6:
            item = sequence(ticket, draw.randint(1, 40), draw.randint(1, 20), draw.choice((1, 1, 1, 2)))
            alive[ticket] = item
            scheduler.add(item)
        if alive and draw.random() < 0.3:
            scheduler.end(alive.pop(draw.choice(list(alive))))
        step = scheduler.plan()
        if step is not None:
            held -= set(step.released)
            assert not held & {admission.slot for admission in step.admitted}
            held |= {admission.slot for admission in step.admitted}
            choose(scheduler, step)
        blocks = [block for item in scheduler.running.values() for block in item.blocks]
        assert len(blocks) == len(set(blocks)) == scheduler.used_blocks <= 30
        for slot in [s for s, item in scheduler.running.items() if len(item.new_tokens) > 5]:
            item = scheduler.running[slot]
            scheduler.end(alive.pop(item.ticket))
    for item in alive.values():
        scheduler.end(item)
    assert (scheduler.used_blocks, scheduler.waiting, len(scheduler.running)) == (0, 0, 0)
