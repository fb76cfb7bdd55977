"""Row `reward`: how many completions a second the correctness reward judges, and whether it judges alike.

The peer judges a sample (it would take minutes for all), both as rates of the scoring alone and as whole processes.
Verdicts are compared form by form on the sample, each form with the reason why the two differ there.
"""

import json
from pathlib import Path
from typing import Any

from bench.results import Result
from bench.session import Plot, Row, Session, Side, program

FORMS = ("plain", "money", "comma", "unit", "boxed")
WHY = {
    "plain": "the peer reads LaTeX only ($...$, \\boxed{}): a bare number in the answer block is no answer to it",
    "money": "the peer sees one dollar sign, which opens no LaTeX",
    "comma": "as plain; thousands separators are dropped here",
    "unit": "as plain; a unit after the number is dropped here",
    "boxed": "LaTeX-anchored: both read it",
    "latex": "LaTeX-anchored: both read it, by math-verify",
}
"""Why verdicts differ in a form, where they do."""


def run(session: Session) -> None:
    """Measure."""
    result = session.result
    peer_count = session.size(5_000, 40)
    counts = {0.0: session.size(100_000, 400), 0.02: session.size(20_000, 400)}
    for label, share in (("number forms", 0.0), ("2 % LaTeX", 0.02)):
        latex = ("--latex", share)
        verdicts = {side: session.scratch / f"{side}-{share}.json" for side in ("peer", "ours")}
        case = session.compare(
            label,
            {
                "peer": Side(program("peers/reward_math_verify.py", peer_count, *latex, "--out", verdicts["peer"])),
                "ours": Side(program("ours/reward.py", counts[share], *latex)),
            },
            pairs=None if share == 0 else 3,
        )
        sample = session.compare(
            f"{label}, verdicts on the peer's sample",
            {"ours": Side(program("ours/reward.py", peer_count, *latex, "--out", verdicts["ours"]))},
            pairs=1,
        )
        case["facts"] |= {"completions": {"peer": peer_count, "ours": counts[share]}}
        if all(path.exists() for path in verdicts.values()):
            sample["facts"]["verdicts"] = compare_verdicts(verdicts["peer"], verdicts["ours"])
            result.save()
    for points in session.size((1_000, 10_000, 100_000), (40, 80)):
        sides = {"ours": Side(program("ours/reward.py", points))}
        if points <= 10_000:
            sides = {"peer": Side(program("peers/reward_math_verify.py", points)), **sides}
        session.compare(f"{points} completions", sides, x=points, growth=True)


def asks(result: Result) -> None:
    """What was asked."""
    for figure, words in (("completions_per_s", "a second"), ("completions_per_cpu_s", "a second of CPU time")):
        times = result.times("number forms", "peer", figure)
        result.ask(f"completions {words}, ours over the peer", times, ">=", 50)
    disagreements = sum(
        line["differ"]
        for case in result.data["cases"]
        for line in case["facts"].get("verdicts", [])
        if line["form"] in ("boxed", "latex")
    )
    result.ask("LaTeX-anchored answers on which the verdicts differ", disagreements, "<=", 0)


def compare_verdicts(peer: Path, ours: Path) -> list[dict[str, Any]]:
    """One line a form: how often each side says right, how often they differ, and why.

    Args:
        peer: verdicts file of the peer.
        ours: of this project.
    """
    theirs, own = (json.loads(path.read_text(encoding="utf-8")) for path in (peer, ours))
    lines = []
    for form in dict.fromkeys(own["forms"]):
        rows = [index for index, name in enumerate(own["forms"]) if name == form]
        pairs = [(theirs["verdicts"][index], own["verdicts"][index], own["truth"][index]) for index in rows]
        lines.append(
            {
                "form": form,
                "completions": len(pairs),
                "truly right": sum(truth for _, _, truth in pairs),
                "peer says right": sum(verdict == 1.0 for verdict, _, _ in pairs),
                "ours says right": sum(verdict == 1.0 for _, verdict, _ in pairs),
                "ours wrong": sum((verdict == 1.0) != truth for _, verdict, truth in pairs),
                "differ": sum(first != second for first, second, _ in pairs),
                "why": WHY[form],
            }
        )
    return lines


ROW = Row(
    name="reward",
    work="the correctness reward on 100,000 completions whose answers are plain, money, comma, unit and boxed numbers",
    peer="TRL's accuracy_reward (math-verify)",
    ask=">= 50 x the peer's completions a second; the same verdicts on LaTeX-anchored answers",
    run=run,
    asks=asks,
    limits=(
        "Completions per CPU second are of the scoring process: in the case with LaTeX ours leaves out the process in "
        "which math-verify runs, so only its wall time compares there."
    ),
    plots=(Plot("score_s", "Time to judge completions", "completions", "seconds"),),
)
