"""What a person reads about a prepared dataset: `report.json` for programs, `report.md` for people, the same facts.

Called by `prepare_dataset`. Nothing in it depends on time, place or machine, so that equal inputs give equal bytes. The
dataset's report shows no text of the holdout, only places in its file: whoever reads it to choose something must not
see what is evaluated on.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from components.prepare_dataset.selection import Selection
from components.prepare_dataset.writing import WrittenSplit

FORMAT = 1

_REASONS = {
    "duplicate": "repeats of another row",
    "overlong": "prompts over the token limit",
    "overlap": "questions also in a later split",
    "near_overlap": "near copies of questions in a later split",
}
_OFTEN = 0.5
_ENOUGH_ROWS = 20


def describe_source(selections: Sequence[Selection]) -> dict[str, Any]:
    """Facts on one given source: rows read, dropped by reason, first offending rows.

    Args:
        selections: the splits made from it, at least one.
    """
    source = selections[0].source
    dropped = dict(source.broken)
    first: list[dict[str, str]] = [asdict(offence) for offence in source.first_broken]
    for selection in selections:
        for reason, count in selection.dropped.items():
            dropped[_REASONS[reason]] = dropped.get(_REASONS[reason], 0) + count
        for reason, offences in selection.first.items():
            # Such a row's text may be that of a row of the holdout, which this report must not show.
            twin = reason != "overlong"
            first += [asdict(replace(offence, value="") if twin else offence) for offence in offences]
    return {
        **source.files.provenance,
        "rows_read": source.rows_read,
        "rows_kept": source.rows_read - sum(dropped.values()),
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "first_offending_rows": first,
        "questions_with_special_tokens": source.special,
    }


def describe_split(written: WrittenSplit) -> dict[str, Any]:
    """Facts on one written split."""
    return {
        "rows": written.rows,
        "fingerprint": written.fingerprint,
        "prompt_tokens": written.tokens,
        "longest_prompts": written.longest,
        "labels": written.labels,
        "samples": written.samples,
    }


def find_warnings(
    sources: dict[str, dict[str, Any]],
    splits: dict[str, dict[str, Any]],
    near: dict[str, int],
    conflicts: dict[str, int],
    unpinned: dict[str, str],
) -> list[str]:
    """What is odd enough to tell, though not to refuse; one sentence each.

    Args:
        sources: `describe_source` by split name.
        splits: `describe_split` by split name.
        near: near copies by "split of other split".
        conflicts: rows whose question another row answers otherwise, by source.
        unpinned: commit found for each hub source whose config names none, by split name.
    """
    warnings = []
    for name, source in sources.items():
        for reason, count in source["dropped"].items():
            warnings.append(f"{name}: {count} of {source['rows_read']} rows dropped: {reason}")
        if source["questions_with_special_tokens"]:
            warnings.append(
                f"{name}: {source['questions_with_special_tokens']} questions contain special tokens of the tokenizer, "
                "which can end the user's turn early; look at them"
            )
    for name, count in conflicts.items():
        if count:
            warnings.append(
                f"{name}: {count} rows ask a question that another row answers otherwise; one of them is wrong"
            )
    for pair, count in near.items():
        if count:
            warnings.append(f"{count} questions of {pair}")
    for name, split in splits.items():
        share = split["labels"]["most_common_share"]
        if share >= _OFTEN and split["rows"] >= _ENOUGH_ROWS:
            top = split["labels"]["top"][0]["answer"]
            warnings.append(
                f"{name}: {share:.0%} of the gold answers are {top!r}; a model that always says so scores as much"
            )
    for name, revision in unpinned.items():
        warnings.append(f"{name}: the hub revision is not pinned; write revision: {revision}")
    return warnings


def render_markdown(report: dict[str, Any]) -> str:
    """The report as a page.

    Args:
        report: the content of a `report.json` (dataset or holdout).
    """
    lines = [f"# {report['title']}", ""]
    lines += [f"- **{warning}**" for warning in report["warnings"]] or ["Nothing odd was found."]
    lines += [
        "",
        "## Splits",
        "",
        "| split | rows | tokens: mean | p50 | p90 | p95 | p99 | max | distinct answers | most common |",
    ]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for name, split in report["splits"].items():
        tokens, labels = split["prompt_tokens"], split["labels"]
        figures = " | ".join(str(tokens.get(key, "")) for key in ("mean", "p50", "p90", "p95", "p99", "max"))
        top = labels["top"][0]["answer"] if labels["top"] else ""
        common = f"{_cell(top)} ({labels['most_common_share']:.1%})"
        lines.append(f"| {name} | {split['rows']} | {figures} | {labels['distinct']} | {common} |")
    lines += ["", "## Sources", ""]
    for name, source in report["sources"].items():
        dropped = ", ".join(f"{count} {reason}" for reason, count in source["dropped"].items()) or "none"
        lines.append(
            f"- **{name}** ({_place(source)}): {source['rows_read']} rows read, {source['rows_kept']} kept; "
            f"dropped: {dropped}"
        )
        for offence in source["first_offending_rows"]:
            shown = f": `{_cell(offence['value'])}`" if offence["value"] else ""
            lines.append(f"  - `{offence['where']}` {offence['field']} {offence['reason']}{shown}")
    for name, split in report["splits"].items():
        lines += [
            "",
            f"## {name}",
            "",
            "Most common answers: "
            + ", ".join(f"{_cell(label['answer'])} ({label['rows']})" for label in split["labels"]["top"]),
            "",
            "Longest prompts:",
            "",
        ]
        lines += [
            f"- {row['tokens']} tokens, `{row['id']}`: {_cell(row['question'])}" for row in split["longest_prompts"]
        ]
        if split["samples"]:
            lines += ["", "First prompts as the model reads them:"]
        for sample in split["samples"]:
            lines += ["", "````text", sample["prompt"], "````", f"gold answer: `{sample['answer']}`"]
    lines += ["", "## Identity", ""]
    lines += [f"- {key}: `{value}`" for key, value in report["identity"].items()]
    return "\n".join(lines) + "\n"


def _place(source: dict[str, Any]) -> str:
    if source["kind"] == "hub":
        return f"hub {source['hub']}, {source['split']}, revision {source['revision']}"
    if source["kind"] == "generated":
        return f"generated {source['task']}, seed {source['seed']}"
    names = [file["name"] for file in source["files"]]
    return names[0] if len(names) == 1 else f"{len(names)} files"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
