"""What a row is, and what it measures with. Used by every module in rows/ and by __main__.py.

A session runs the sides of a comparison in alternation (peer, ours, peer, ours, ...), five pairs where a run takes less
than 30 seconds and three above, and saves after each pair. Load of the machine is recorded with each run: on a busy
machine the ratios hold better than the seconds.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring import Usage, run_program
from bench.profiling import profile
from bench.results import ROOT, Result

LONG_RUN_S = 30.0
"""From this wall time on three pairs are enough."""

STATE = ROOT / ".grpo" / "bench"
"""Inputs that are made once: models, data, the aws command."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: `python -m bench NAME`.
        work: what both sides do.
        peer: what a person would run instead.
        ask: what is asked, in words; the figures are in the row's `asks`.
        run: measures.
        asks: sets what was found beside what was asked; called however far the measurement came.
        limits: what holds the figure where it is, and what would lift it; shown with the figures.
        plots: growth plots.
        gpu: whether it needs a GPU.
    """

    name: str
    work: str
    peer: str
    ask: str
    run: "Callable[[Session], None]"
    asks: Callable[[Result], None]
    limits: str = ""
    plots: "tuple[Plot, ...]" = ()
    gpu: bool = False


@dataclass(frozen=True)
class Plot:
    """How a cost grows.

    Attributes:
        figure: which figure of the runs is drawn, such as `wall_s`.
        title: of the plot.
        x: what the size counts.
        y: what is drawn.
        log: logarithmic axes.
    """

    figure: str
    title: str
    x: str
    y: str
    log: bool = True


@dataclass(frozen=True)
class Side:
    """One program of a comparison.

    Attributes:
        command: the program and its arguments.
        before: called before each run, not measured (to remove what the last one left).
        after: called after each run with its figures; what it returns is added to them.
        folder: working directory.
        environment: further variables.
    """

    command: Sequence[str]
    before: Callable[[], object] | None = None
    after: Callable[[Usage], Mapping[str, Any]] | None = None
    folder: Path | None = None
    environment: Mapping[str, str] | None = None


class Session:
    """Measures one row.

    Args:
        result: where the figures go.
        scratch: a folder that is removed afterwards.
        tiny: measure next to nothing, to try the machinery.
        pairs: runs of each side; None takes the rule.
        profiled: run our side of the first comparison once more under the profiler.
    """

    def __init__(
        self, result: Result, scratch: Path, *, tiny: bool = False, pairs: int | None = None, profiled: bool = False
    ) -> None:
        self.result = result
        self.scratch = scratch
        self.tiny = tiny
        self._pairs = 1 if tiny else pairs
        self._profiled = profiled

    def size(self, full: Any, tiny: Any) -> Any:
        """The real size, or the one to try the machinery with."""
        return tiny if self.tiny else full

    def compare(
        self,
        label: str,
        sides: Mapping[str, Side],
        *,
        x: float | None = None,
        growth: bool = False,
        pairs: int | None = None,
    ) -> dict[str, Any]:
        """Run the sides in alternation.

        Args:
            label: what tells this comparison from the row's others.
            sides: by name, peers first, `ours` last.
            x: its size, for the growth plot.
            growth: a point of the growth plot only, run once.
            pairs: runs of each side, where the rule does not fit.

        Returns:
            The case, with medians and ratios.
        """
        case = self.result.case(label, x=x, growth=growth)
        case["commands"] = {name: self.shown(side) for name, side in sides.items()}
        runs: dict[str, list[Usage]] = case["runs"]
        for name in sides:
            runs.setdefault(name, [])
        while min(map(len, runs.values())) < self._wanted(runs, growth, pairs):
            for name, side in sides.items():
                if len(runs[name]) > min(map(len, runs.values())):
                    continue  # a pair that was stopped half way
                runs[name].append(self._once(side))
                taken = runs[name][-1]
                print(f"  {label}: {name} {taken['wall_s']} s, {taken['rss_mib']} MiB", flush=True)
                self.result.save()
        if self._profiled and not growth:
            self._profiled = False
            self._profile(sides["ours"])
        self.result.save()
        return case

    def _wanted(self, runs: Mapping[str, list[Usage]], growth: bool, pairs: int | None) -> int:
        if growth:
            return 1
        if self._pairs is not None or pairs is not None:
            return self._pairs or pairs or 1
        longest = max((run["wall_s"] for side in runs.values() for run in side), default=0.0)
        return 3 if longest >= LONG_RUN_S else 5

    def _profile(self, side: Side) -> None:
        if side.before is not None:
            side.before()
        self.result.data["profile"] = profile(
            side.command,
            environment=base_environment() | dict(side.environment or {}),
            folder=side.folder or ROOT,
            scratch=self.scratch,
        )

    def _once(self, side: Side) -> Usage:
        if side.before is not None:
            side.before()
        load = os.getloadavg()[0]
        figures = run_program(
            side.command, environment=base_environment() | dict(side.environment or {}), folder=side.folder or ROOT
        )
        figures["load"] = round(load, 2)
        if side.after is not None:
            figures |= side.after(figures)
        return figures

    def shown(self, side: Side) -> str:
        """The command as a reader would type it from the repository's root."""
        text = shlex.join("python" if part == sys.executable else str(part) for part in side.command)
        text = text.replace(str(self.scratch), "SCRATCH").replace(str(STATE), "STATE").replace(f"{ROOT}/", "")
        if len(text) > 600:
            text = text[:600] + " ..."
        variables = " ".join(f"{key}={value}" for key, value in (side.environment or {}).items() if key in SHOWN)
        return f"{variables} {text}".strip()


SHOWN = ("OMP_NUM_THREADS", "PYTHONPROFILEIMPORTTIME")
"""Variables that matter to the figures."""


def base_environment() -> dict[str, str]:
    """What every measured program gets: this checkout first on the path, no telemetry, no network for weights."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",  # empty means off: modules are compiled once, as everywhere
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TOKENIZERS_PARALLELISM": "false",
    }


def program(path: str, *arguments: object) -> list[str]:
    """The command that runs a program of this folder.

    Args:
        path: below bench/, such as `peers/merge_peft.py`.
        arguments: given to it.
    """
    return [sys.executable, str(ROOT / "bench" / path), *map(str, arguments)]


def removed(*paths: Path) -> Callable[[], None]:
    """Something that removes folders or files, where they are there.

    Args:
        paths: what to remove.
    """

    def remove() -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    return remove
