"""Completions to judge, the same for both sides of the row `reward`. Called by its two programs.

Text in the default format: GSM8K's own worked solutions as reasoning, and an answer that is right in two of three.
Seeded: the first n of a longer list are the shorter list. Imports nothing but the standard library.
"""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

THINGS = ("apples", "tickets", "miles", "boxes", "dollars", "minutes")


@dataclass(frozen=True)
class Judged:
    """One completion.

    Attributes:
        form: how its answer is written.
        text: the completion.
        gold: the right answer.
        right: whether its answer is.
    """

    form: str
    text: str
    gold: str
    right: bool


def make(count: int, latex: float = 0.0) -> list[Judged]:
    """Completions of all forms, mixed.

    Args:
        count: how many.
        latex: share of answers that are LaTeX expressions.
    """
    draw = random.Random(7)
    reasonings = solutions()
    rows = []
    for _ in range(count):
        right = draw.random() < 2 / 3
        first, second = draw.randint(2, 900), draw.randint(2, 900)
        kind, number = draw.random(), draw.randrange(5)
        expression = latex_answer(draw)
        value = first + second * draw.randint(1, 40)
        if kind < latex:
            gold, form = expression[0], "latex"
            answer = f"\\boxed{{{expression[1 if right else 2]}}}"
        else:
            gold = str(value)
            said = value if right else value + draw.randint(1, 9)
            form, answer = (
                ("plain", f"{said}"),
                ("money", f"${said}"),
                ("comma", f"{said:,}"),
                ("unit", f"{said} {THINGS[number]}"),
                ("boxed", f"\\boxed{{{said}}}"),
            )[number]
        reasoning = draw.choice(reasonings)
        rows.append(Judged(form, f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>", gold, right))
    return rows


def solutions() -> list[str]:
    """GSM8K's worked solutions, without calculator notes and final answer."""
    lines = (Path(__file__).parent / "data" / "gsm8k-256.jsonl").read_text(encoding="utf-8").splitlines()
    texts = (json.loads(line)["answer"].rpartition("####")[0].strip() for line in lines)
    return [re.sub(r"<<[^<>]*>>", "", text) for text in texts]


def latex_answer(draw: random.Random) -> tuple[str, str, str]:
    """A gold expression, a right answer and a wrong one, hardly ever the same twice.

    Args:
        draw: source of numbers.
    """
    a, b, c = draw.randint(2, 99), draw.randint(2, 99), draw.randint(1, 9)
    return draw.choice(
        (
            (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{a * c}}}{{{b * c}}}", f"\\frac{{{a + c}}}{{{b}}}"),
            (f"\\sqrt{{{a}}}", f"\\sqrt{{{a}}}", f"\\sqrt{{{a + c}}}"),
            (f"{a}\\pi", f"{a} \\pi", f"{a + c}\\pi"),
            (
                f"\\frac{{\\sqrt{{{a}}}}}{{{b}}}",
                f"\\frac{{\\sqrt{{{a}}}}}{{{b}}}",
                f"\\frac{{\\sqrt{{{a + c}}}}}{{{b}}}",
            ),
            (f"x^2+{a}", f"{a}+x^2", f"x^2-{a}"),
            (f"\\sqrt{{{a * a}}}", f"{a}", f"{a + c}"),
        )
    )
