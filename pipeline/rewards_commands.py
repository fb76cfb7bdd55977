"""`grpo rewards`: try a run's rewards before anything is trained.

`test` holds them to the smoke test's first two parts (data and traps) on a laptop, without torch. `try` scores a
person's own completion and says why. `sample` draws completions from the base model, updates nothing, and shows what
each reward makes of them. Mounted by `pipeline.cli`; the top of this module is light, what is heavy is imported in a
command.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from components.contract import Contract
    from components.smoke_test_rewards.config import SamplingConfig
    from components.smoke_test_rewards.traps import Row
    from components.train_grpo.config import TrainingConfig
    from pipeline.config import RunConfig

CANDIDATE_ROWS = 2_000
"""Rows at the start of the training data that `test` chooses from."""

rewards_app = typer.Typer(name="rewards", help="Try a run's rewards before anything is trained.", no_args_is_help=True)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, such as smoke_test.rows=20."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="Try this reward alone; repeat for several.")
]


@rewards_app.command("test")
def hold_to_traps(
    config: ConfigPath,
    overrides: Overrides = None,
    only: Only = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as a page to this file.")] = None,
    table: Annotated[bool, typer.Option(help="Show the scores of every kind of completion.")] = True,
) -> None:
    """Hold the rewards to their contract with the data and to the traps; no model, no torch. Exit code 3 on failure."""
    from components.contract import build_contract
    from components.errors import ExitCode
    from components.smoke_test_rewards.report import write_page
    from components.smoke_test_rewards.rows import choose_rows
    from components.smoke_test_rewards.smoke_test_rewards import try_rewards
    from pipeline.rewards_display import print_report

    loaded = _load(config, overrides, only)
    contract = build_contract(loaded.contract)
    rows = read_raw_rows(loaded, contract, CANDIDATE_ROWS)
    wanted, seed = loaded.smoke_test.rows, loaded.smoke_test.seed
    chosen = [rows[index] for index in choose_rows([row.gold for row in rows], wanted, seed)]
    stages = {stage.name: stage.rewards for stage in loaded.stages if stage.rewards is not None}
    report = try_rewards(chosen, contract, loaded.rewards, loaded.smoke_test, judge_total=not only, stages=stages)
    print_report(report, table)
    if html is not None:
        write_page(report, loaded.smoke_test, html)
        typer.echo(f"wrote {html}")
    if not report.passed:
        raise typer.Exit(int(ExitCode.GATE_FAILED))


@rewards_app.command("try")
def try_completion(
    config: ConfigPath,
    completion: Annotated[Path, typer.Option("--completion", help="File with the completion; - reads standard input.")],
    gold: Annotated[str | None, typer.Option("--gold", help="The gold answer; default: that of the row.")] = None,
    row: Annotated[int, typer.Option("--row", min=1, help="Row of the training data that gives the columns.")] = 1,
    overrides: Overrides = None,
    only: Only = None,
) -> None:
    """Score a completion of your own: what the contract reads in it, and each reward's verdict with its reason."""
    from dataclasses import replace

    from components.contract import build_contract
    from components.errors import BadInputError, ExitCode
    from components.smoke_test_rewards.scoring import Bench, Tried
    from pipeline.rewards_display import print_verdicts

    loaded = _load(config, overrides, only)
    text = _read_completion(completion)
    prefill = loaded.contract.prefill
    if not text.startswith(prefill.strip()):
        text = prefill + text
    contract = build_contract(loaded.contract.model_copy(update={"prefill": ""}))
    rows = read_raw_rows(loaded, contract, row)
    if len(rows) < row:
        raise BadInputError(f"--row {row}: the training data has only {len(rows)} usable rows")
    chosen = rows[row - 1]
    if gold is not None:
        chosen = replace(chosen, gold=gold, columns={**chosen.columns, "answer": gold})
    with Bench(loaded.rewards, loaded.contract, loaded.smoke_test) as bench:
        scored = bench.score([Tried(chosen, text, "the completion")])
        print_verdicts(contract, bench.rewards, chosen, text, scored)
    if scored.problems:
        raise typer.Exit(int(ExitCode.ERROR))


@rewards_app.command()
def sample(
    config: ConfigPath,
    overrides: Overrides = None,
    only: Only = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Training prompts to sample for.")] = 4,
    shown: Annotated[int, typer.Option("--shown", min=1, help="Completions of a group to print.")] = 4,
    home: Annotated[Path, typer.Option("--home", help="Folder for scratch space.")] = Path(".grpo"),
) -> None:
    """Generate from the base model, update nothing, and show each reward and the spread in each group."""
    from components.contract import build_contract
    from components.smoke_test_rewards.base_samples import generate_groups, score_groups
    from components.smoke_test_rewards.data_checks import problem_findings
    from components.smoke_test_rewards.learning_signal import judge_signal, measure_signal
    from components.smoke_test_rewards.rows import draw_rows
    from components.smoke_test_rewards.scoring import Bench
    from components.smoke_test_rewards.sections import to_sampling
    from pipeline.rewards_display import counting, print_signal

    loaded = _load(config, overrides, only)
    contract = build_contract(loaded.contract)
    rows = draw_rows(read_raw_rows(loaded, contract, CANDIDATE_ROWS), prompts, loaded.smoke_test.seed)
    sampling = to_sampling(training_sampling(loaded.training), loaded.smoke_test)
    with Bench(loaded.rewards, loaded.contract, loaded.smoke_test) as bench:
        # The rewards' worker starts before the model is loaded, as in training.
        weights = {reward.name: reward.weight for reward in bench.rewards}
        with counting("completions of the base model") as progress:
            directory = base_model_directory(loaded, home)
            drawn = generate_groups(directory, contract, rows, sampling, on_progress=progress)
        groups, problems = score_groups(bench, drawn, weights)
    signal = measure_signal(groups, weights, sampling.temperature)
    findings = problem_findings(problems, sum(len(group.completions) for group in groups))
    print_signal(signal, [*findings, *judge_signal(signal, loaded.smoke_test, honest_total=None)], shown)


def read_raw_rows(config: "RunConfig", contract: "Contract", count: int) -> "list[Row]":
    """The first usable rows of a config's training data, mapped as `prepare_dataset` maps them.

    No tokenizer is asked, so rows that are too long are not left out, and nothing is split off.

    Args:
        config: the run config.
        contract: writes the prompts and says which gold answers are readable.
        count: rows wanted.

    Raises:
        BadInputError: when the data cannot be read, or too many rows are broken.
    """
    import json
    import tempfile

    from components.prepare_dataset.scan import KEPT_PREFIX, ScanRules, scan_source
    from components.prepare_dataset.sources import resolve_source
    from components.smoke_test_rewards.rows import make_row

    data = config.data
    source = data.train
    columns = data.columns_of(source)
    limit = min(count, data.limit or count)
    wanted = [columns.question, columns.answer, *([columns.solution] if columns.solution else []), *columns.keep]
    rules = ScanRules(
        name="train",
        columns=columns,
        gold=data.gold_of(source),
        limit=limit,
        batch_rows=min(data.batch_rows, limit),
        max_broken_share=data.max_broken_share,
    )
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        files = resolve_source(source, name="train", columns=wanted, limit=limit, work=work)
        scanned = scan_source(files, rules, contract, _NoTokenizer(), work)  # type: ignore[arg-type]
        rows = []
        for _, batch in scanned.batches():
            for values in batch.to_pylist():
                kept = {
                    name.removeprefix(KEPT_PREFIX): json.loads(value)
                    for name, value in values.items()
                    if name.startswith(KEPT_PREFIX)
                }
                own = {name: values[name] for name in ("id", "question", "answer", "solution")}
                prompt = contract.messages(values["question"])
                rows.append(make_row(values["where"], {**own, "prompt": prompt, **kept}))
    return rows


def training_sampling(training: "TrainingConfig") -> "SamplingConfig":
    """How a training section samples, presets applied, as the smoke test takes it.

    Args:
        training: the section.
    """
    from components.smoke_test_rewards.config import SamplingConfig

    return SamplingConfig(
        temperature=training.value("temperature"),
        top_p=training.value("top_p"),
        top_k=training.value("top_k"),
        repetition_penalty=training.value("repetition_penalty"),
        max_new_tokens=training.value("max_completion_length"),
        group_size=training.value("num_generations"),
    )


def base_model_directory(config: "RunConfig", home: Path) -> Path:
    """A local folder with the base model, imported into the run's store as a run would import it.

    Args:
        config: the run config.
        home: folder for scratch space.

    Raises:
        BadInputError: when there is no such model.
    """
    from components.import_model.import_model import import_model
    from components.storage.store import fetch, open_store

    work = (home / "work" / "import_model").absolute()
    work.mkdir(parents=True, exist_ok=True)
    imported = import_model(config.model, open_store(config.store), work=work)
    return fetch(imported.reference, config=config.store)


class _NoTokenizer:
    """Takes the place of the prompt builder where token counts do not matter."""

    def count_tokens(self, questions: "Sequence[str]") -> Any:
        """No tokens for any question."""
        import numpy as np

        return np.zeros(len(questions), dtype=np.int32)

    def holds_special(self, question: str) -> bool:
        """Not known without a tokenizer."""
        return False


def _load(config: Path, overrides: list[str] | None, only: list[str] | None) -> "RunConfig":
    from pipeline.config import load_config
    from pipeline.installed import require_extra

    require_extra("data", "`grpo rewards`")
    loaded = load_config(config, overrides or [])
    return loaded.model_copy(update={"rewards": loaded.rewards.only(only)}) if only else loaded


def _read_completion(path: Path) -> str:
    import sys

    from components.errors import BadInputError

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--completion {path} cannot be read: {error}") from None
    # Editors end a file with a line break that no model wrote.
    return text.removesuffix("\n")
