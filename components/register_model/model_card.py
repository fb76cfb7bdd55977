"""The model card: a README.md kept beside the weights in the store, with the figures and how to serve them.

Called by register_model. An artifact is immutable, so the card is one of its own: `<weights' key>-card-<hash>`. The
same results make the same card (no time in it).
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.sections import content_hash
from components.storage.references import Reference
from components.storage.store import ArtifactStore, key_within

WORDS = {
    "format_compliance": "strictly in the format",
    "format_compliance_lenient": "roughly in the format",
    "accuracy_strict": "in the format and right",
    "accuracy_lenient": "right, however it is said",
    "truncation_rate": "cut off at the token limit",
}


@dataclass(frozen=True)
class CardFacts:
    """What the card tells.

    Attributes:
        name: the registered model.
        weights: the merged weights.
        base_source: where the base model came from.
        base_revision: its revision, or empty.
        licence: of the base model, or empty.
        system_prompt: what the chat template inserts by default.
        rows: holdout rows.
        table: metric -> base, candidate, delta, each value, low, high.
        gates: one sentence a gate.
        settings: of the candidate's evaluation.
    """

    name: str
    weights: Reference
    base_source: str
    base_revision: str
    licence: str
    system_prompt: str
    rows: int
    table: dict[str, dict[str, dict[str, float]]]
    gates: list[str]
    settings: dict[str, Any]


def render_card(facts: CardFacts) -> str:
    """The card as Markdown with the front matter the hub reads.

    Args:
        facts: what it tells.
    """
    # JSON texts are YAML texts too: no value can break out of its line.
    head = ["---", f"base_model: {json.dumps(facts.base_source)}", "tags: [grpo, lora-merged]"]
    head += [f"license: {json.dumps(facts.licence)}"] if facts.licence else []
    sampling = facts.settings.get("sampling", {}).get("greedy", {})
    lines = [
        *head,
        "---",
        "",
        f"# {facts.name}",
        "",
        f"Trained with GRPO from {facts.base_source}"
        + (f" at revision {facts.base_revision}" if facts.base_revision else "")
        + "; the adapter is merged into the weights.",
        "",
        f"## Evaluation on {facts.rows:,} holdout rows, greedy",
        "",
        "| completions that are | base | this model | difference |",
        "|---|---|---|---|",
        *(_row(name, figures) for name, figures in facts.table.items()),
        "",
        (
            f"In brackets: 95 % intervals, paired for the difference. {facts.settings.get('engine')} "
            f"{facts.settings.get('version')}, {facts.settings.get('dtype')}, at most "
            f"{sampling.get('max_new_tokens')} new tokens."
        ),
        "",
        *(f"- {gate}" for gate in facts.gates),
        "",
        "## Serve",
        "",
        f"    grpo serve {facts.name}",
        f"    grpo chat {facts.name}",
        "",
        (
            "Any server that applies the chat template of these weights will do. A request without a system message "
            "gets this one; the template argument `default_system: false` leaves it out:"
        ),
        "",
        *(f"    {line}" for line in facts.system_prompt.splitlines()),
        "",
        "## Weights",
        "",
        f"    {facts.weights}",
        "",
    ]
    return "\n".join(lines)


def put_card(store: ArtifactStore, facts: CardFacts) -> tuple[Reference, str]:
    """Keep the card beside the weights; the same card again changes nothing.

    Args:
        store: where the weights are.
        facts: what it tells.

    Returns:
        The card's artifact and its text.
    """
    text = render_card(facts)
    key = f"{key_within(store.uri, facts.weights)}-card-{content_hash(text)[:12]}"
    found = store.find(key)
    if found is None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "README.md").write_text(text, encoding="utf-8")
            found = store.put(Path(folder), key, provenance={"kind": "model_card", "weights": str(facts.weights)})
    return found, text


def _row(name: str, figures: dict[str, dict[str, float]]) -> str:
    cells = [_share(figures["base"]), _share(figures["candidate"]), _points(figures["delta"])]
    return f"| {WORDS.get(name, name)} | " + " | ".join(cells) + " |"


def _share(figure: dict[str, float]) -> str:
    return f"{figure['value']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]"


def _points(figure: dict[str, float]) -> str:
    value, low, high = (figure[name] * 100 for name in ("value", "low", "high"))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
