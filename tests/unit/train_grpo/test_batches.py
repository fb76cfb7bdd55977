"""Batch, accumulation, processes and G fit together, or the refusal names the choices that do."""

import pytest

from components.errors import BadInputError
from components.train_grpo.batches import plan_batches


def plan(**changes):
    values = {"group_size": 8, "per_device": 8, "accumulation": None, "prompts_per_step": None, "processes": 1}
    return plan_batches(**(values | changes))


def test_accumulation_follows_from_prompts_per_step():
    found = plan(prompts_per_step=4)
    assert (found.accumulation, found.completions, found.prompts) == (4, 32, 4)


def test_accumulation_is_the_smallest_that_fits_a_group():
    assert plan(per_device=3).accumulation == 8
    assert plan(per_device=4).accumulation == 2


def test_processes_share_the_completions():
    found = plan(prompts_per_step=4, processes=2)
    assert (found.accumulation, found.completions) == (2, 32)


def test_a_batch_that_g_does_not_divide_is_refused_with_choices():
    with pytest.raises(
        BadInputError, match=r"gradient_accumulation_steps to one of 2, 4, 6, 8, or num_generations to one of 2, 4"
    ):
        plan(per_device=4, accumulation=1)


def test_the_published_presets_batch_is_refused():
    """batch 1 x accumulation 4 with G=8, as the guide's small-GPU preset has it."""
    with pytest.raises(BadInputError, match="num_generations: 8 does not divide the 4 completions"):
        plan(per_device=1, accumulation=4)


def test_prompts_per_step_beside_another_accumulation_is_refused():
    with pytest.raises(BadInputError, match="leave gradient_accumulation_steps out"):
        plan(prompts_per_step=2, accumulation=1)


def test_a_device_batch_that_does_not_divide_the_step_is_refused_with_choices():
    with pytest.raises(BadInputError, match="valid values: 1, 2, 4, 8, 16"):
        plan(prompts_per_step=2, per_device=5)


def test_one_completion_is_no_group():
    with pytest.raises(BadInputError, match="at least 2"):
        plan(group_size=1)


def test_a_smaller_micro_batch_keeps_the_completions_of_a_step():
    found = plan(per_device=8, prompts_per_step=4).smaller()
    assert (found.per_device, found.accumulation, found.completions) == (4, 8, 32)
    assert plan(per_device=3, accumulation=8).smaller().per_device == 1
    assert plan(per_device=1).smaller() is None


def test_generation_comes_in_rounds_of_whole_groups():
    smaller = plan(per_device=16, prompts_per_step=4).smaller()
    assert (smaller.accumulation, smaller.rounds(2)) == (4, 2)
    assert plan(per_device=1, prompts_per_step=2).rounds(1) == 16
