"""Rewards that misbehave, each in one way. Loaded by path, as a person's own reward file is."""

import os
import random
import time


def sound(completions, answer, **kwargs):
    """Right, so that a test can see that the others do not hide it."""
    from components.contract import default_contract

    contract = default_contract()
    texts = [completion[0]["content"] for completion in completions]
    return [
        float((read := contract.read_answer(text)) is not None and contract.equal(read, gold))
        for text, gold in zip(texts, answer, strict=True)
    ]


def sleeps(completions, **kwargs):
    time.sleep(60)
    return [0.0] * len(completions)


def raises(completions, **kwargs):
    raise ValueError("no such luck")


def raises_on_empty(completions, **kwargs):
    return [float(completion[0]["content"][0] == "<") for completion in completions]


def strings(completions, **kwargs):
    return ["good"] * len(completions)


def too_many(completions, **kwargs):
    return [1.0] * (len(completions) + 1)


def infinite(completions, **kwargs):
    return [float("inf")] * len(completions)


def forks(completions, **kwargs):
    if os.fork() == 0:
        time.sleep(60)
    return [1.0] * len(completions)


def dies(completions, **kwargs):
    os._exit(7)


def dice(completions, **kwargs):
    return [random.random() for _ in completions]


def meddles(completions, **kwargs):
    for completion in completions:
        completion[0]["content"] = completion[0]["content"].strip()
    return [1.0] * len(completions)


def wants_tests(completions, tests, **kwargs):
    return [1.0] * len(completions)


def dawdles(completions, **kwargs):
    time.sleep(0.03 * len(completions))
    return [1.0] * len(completions)
