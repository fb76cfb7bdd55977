"""The memory estimate moves the way memory moves, and what it advises leads below the limit."""

from dataclasses import replace

import pytest

from components.train_grpo.memory import GIB, Load, ModelShape, estimate, optimizer_bytes, remedies

SHAPE = ModelShape(
    parameters=1_540_000_000,
    linear_parameters=1_310_000_000,
    adapter_parameters=18_500_000,
    layers=28,
    hidden=1536,
    vocabulary=151_936,
    kv_width=256,
)
LOAD = Load(
    weight_bytes=2, base_bits=16, full=False, optimizer_bytes=8, checkpointing=True,
    micro_batch=8, generated=16, prompt=256, completion=512,
)  # fmt: skip


def total(**changes):
    return estimate(SHAPE, replace(LOAD, **changes), gpu_gib=24.0)["total"]


def test_weights_are_parameters_times_their_bytes():
    assert estimate(SHAPE, LOAD)["weights"] == pytest.approx(1.54e9 * 2 / GIB)


def test_four_bits_leave_embeddings_as_they_are():
    assert estimate(SHAPE, replace(LOAD, base_bits=4))["weights"] == pytest.approx(
        (1.31e9 * 4.127 / 8 + 0.23e9 * 2) / GIB
    )


@pytest.mark.parametrize(
    "less",
    [
        {"micro_batch": 4},
        {"completion": 256},
        {"base_bits": 4},
        {"optimizer_bytes": 2},
    ],
)
def test_less_of_anything_is_less_in_all(less):
    assert total(**less) < total()


@pytest.mark.parametrize("more", [{"full": True}, {"checkpointing": False}, {"vllm_share": 0.4}])
def test_more_of_anything_is_more_in_all(more):
    assert total(**more) > total()


def test_generation_and_update_do_not_add_up():
    cache = estimate(SHAPE, LOAD)["key/value cache"]
    assert total(generated=1) == pytest.approx(total())
    assert 0 < cache < estimate(SHAPE, LOAD)["logits"]


def test_the_advice_ends_below_the_limit_and_each_change_helps():
    load = replace(LOAD, checkpointing=False, full=True)
    before = estimate(SHAPE, load, gpu_gib=15.0)["total"]
    changes = remedies(SHAPE, load, gpu_gib=15.0)
    totals = [before, *(after for _, after in changes)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > 15.0 >= totals[-1]
    assert changes[0][0] == "training.gradient_checkpointing: true"


def test_optimizer_states_follow_the_optimizer():
    assert optimizer_bytes("adamw_torch", 4) == 8
    assert optimizer_bytes("adamw_8bit", 2) == 2
    assert optimizer_bytes("sgd", 4) == 0
