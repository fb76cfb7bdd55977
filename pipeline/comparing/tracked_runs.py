"""Runs as MLflow keeps them, read: found by id, start of an id or name; parameters, figures, curves and files.

Called by `grpo runs`, `show`, `compare` and `reproduce`. Writes nothing. What it refuses (an MLflow that is not there,
a run that is not there, the start of an id that fits several) is one sentence with the mend. mlflow is imported when a
reader is opened.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, PipelineError
from components.tracking.config import TrackingConfig
from pipeline.tracking import open_tracking

if TYPE_CHECKING:
    pass

_ID = re.compile(r"[0-9a-f]{2,32}")
_EVALUATION = re.compile(r"evaluations/([0-9a-f]{12})/")
_PAGE = 1000
"""Most runs MLflow hands out at once."""


@dataclass(frozen=True)
class Figure:
    """A measured value; its interval where there is one.

    Attributes:
        value: the estimate.
        low: lower end, or None.
        high: upper end, or None.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TrackedRunView:
    """One run.

    Attributes:
        run_id: 32 hex digits.
        name: run.name.
        status: MLflow's: RUNNING, FINISHED, FAILED, KILLED.
        started: milliseconds since 1970.
        ended: the same, None while it runs.
        params: flattened config.
        metrics: last value by name.
        tags: text by name.
        artifact_uri: where its files are.
    """

    run_id: str
    name: str
    status: str
    started: int
    ended: int | None
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    artifact_uri: str = ""

    @property
    def short(self) -> str:
        """The start of its id, as tables show it."""
        return self.run_id[:8]

    @property
    def verdict(self) -> str:
        """pass, fail or inconclusive; empty when it was not judged."""
        return self.tags.get("grpo.verdict", "")

    @property
    def holdout(self) -> str:
        """The first 12 digits of its holdout's fingerprint; empty when it was not evaluated."""
        found = _EVALUATION.search(self.tags.get("grpo.candidate_evaluation", ""))
        return self.tags.get("grpo.holdout_fingerprint", found[1] if found else "")[:12]

    @property
    def seconds(self) -> float | None:
        """Training time; of the last stage alone where a run is not registered yet."""
        return self.metrics.get("cost/train_seconds", self.metrics.get("train_runtime"))

    @property
    def tokens(self) -> float | None:
        """Tokens trained on."""
        return self.metrics.get("cost/tokens", self.metrics.get("num_tokens"))

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of the training, None when they were not counted."""
        return self.metrics.get("cost/gpu_hours")

    def figure(self, metric: str, side: str = "candidate") -> Figure | None:
        """A figure of its evaluation.

        Args:
            metric: such as accuracy_strict.
            side: base, candidate or delta.
        """
        name = f"eval/{side}/{metric}"
        if name not in self.metrics:
            return None
        return Figure(self.metrics[name], self.metrics.get(f"{name}/low"), self.metrics.get(f"{name}/high"))


class RunReader:
    """Reads the runs of one experiment.

    Args:
        tracking: where MLflow is, and the experiment.
    """

    def __init__(self, tracking: TrackingConfig) -> None:
        self.tracking = tracking
        self._client = open_tracking(tracking)
        self._experiment = self._find_experiment()

    def newest(self, limit: int) -> list[TrackedRunView]:
        """The newest runs, newest first.

        Args:
            limit: at most so many.
        """
        return self._search("", limit)

    def find(self, name: str) -> list[TrackedRunView]:
        """The runs a person means, oldest first.

        Args:
            name: a run's name (all runs of that name), its id, or the start of its id.

        Raises:
            BadInputError: there is none, or the start of an id fits several.
        """
        quote = '"' if "'" in name else "'"
        found = self._search(f"attributes.run_name = {quote}{name}{quote}", _PAGE) if quote not in name else []
        if not found and _ID.fullmatch(name.lower()):
            found = self._search(f"attributes.run_id LIKE '{name.lower()}%'", _PAGE)
            if len(found) > 1:
                raise BadInputError(
                    f"{name!r} is the start of {len(found)} run ids ({', '.join(run.run_id[:12] for run in found[:5])}"
                    f"{', ...' if len(found) > 5 else ''}); write more of it"
                )
        if not found:
            known = [f"{run.name} ({run.short})" for run in self.newest(5)]
            listed = f"; its newest: {', '.join(known)} (`grpo runs` lists them)" if known else "; it has none yet"
            raise BadInputError(
                f"no run named {name!r}, nor one whose id begins so, in experiment {self.tracking.experiment} of "
                f"{self.tracking.uri}{listed}"
            )
        return found[::-1]

    def find_one(self, name: str) -> tuple[TrackedRunView, int]:
        """The one run a person means: of several with one name the newest.

        Args:
            name: as for `find`.

        Returns:
            The run, and how many have that name.
        """
        found = self.find(name)
        return found[-1], len(found)

    def read_file(self, run: TrackedRunView, path: str) -> str | None:
        """A file of a run as text; None when it has none of that name.

        Args:
            run: the run.
            path: such as config.yaml.

        Raises:
            PipelineError: when the file store does not answer.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from mlflow.exceptions import MlflowException
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        folder, _, name = path.rpartition("/")
        try:
            # Not through the client: for each file it would read the whole run again to learn where its files are.
            files = get_artifact_repository(run.artifact_uri, tracking_uri=self.tracking.uri)
            if not any(item.path == path for item in files.list_artifacts(folder or None)):
                return None
            with tempfile.TemporaryDirectory() as place:
                local = files.download_artifacts(path, place)
                return Path(local).read_text(encoding="utf-8", errors="replace")
        except (MlflowException, OSError, BotoCoreError, ClientError) as error:
            raise PipelineError(
                f"{name} of run {run.name} ({run.short}) cannot be read from {run.artifact_uri}: {_first_line(error)}"
            ) from error

    def versions(self, run: TrackedRunView) -> list[str]:
        """Model versions registered from a run, as name/version.

        Args:
            run: the run.
        """
        found = _asked(lambda: self._client.search_model_versions(f"run_id = '{run.run_id}'"))
        return [f"{version.name}/{version.version}" for version in found]

    def curve(self, run: TrackedRunView, metric: str) -> list[tuple[float, float]]:
        """A metric over training steps; a step that a resumed training made again counts once, the last time.

        Args:
            run: the run.
            metric: its name.
        """
        entries = _asked(lambda: self._client.get_metric_history(run.run_id, metric))
        latest: dict[int, tuple[int, float]] = {}
        for entry in entries:
            if entry.step not in latest or entry.timestamp >= latest[entry.step][0]:
                latest[entry.step] = (entry.timestamp, entry.value)
        return [(float(step), latest[step][1]) for step in sorted(latest)]

    def _find_experiment(self) -> str:
        found = _asked(lambda: self._client.get_experiment_by_name(self.tracking.experiment))
        if found is not None and found.lifecycle_stage == "active":
            return str(found.experiment_id)
        names = [experiment.name for experiment in _asked(lambda: self._client.search_experiments(max_results=20))]
        raise BadInputError(
            f"MLflow at {self.tracking.uri} has no experiment {self.tracking.experiment!r}; it has "
            f"{', '.join(sorted(names)) or 'none'}: choose one with --experiment, or start a run with `grpo run`"
        )

    def _search(self, condition: str, limit: int) -> list[TrackedRunView]:
        views: list[TrackedRunView] = []
        token: str | None = None
        while len(views) < limit:
            wanted: dict[str, Any] = {"max_results": min(_PAGE, limit - len(views)), "page_token": token}
            page = _asked(partial(self._search_page, condition, wanted))
            views += [_view(run) for run in page]
            token = page.token
            if not token:
                break
        return views

    def _search_page(self, condition: str, wanted: dict[str, Any]) -> Any:
        return self._client.search_runs([self._experiment], condition, order_by=["start_time DESC"], **wanted)


def tracking_of(
    config: Path | None, overrides: Sequence[str], uri: str | None, experiment: str | None
) -> TrackingConfig:
    """Where to look: what the options say, then the config's section, then its defaults.

    Args:
        config: a run config, or None.
        overrides: its `--set` texts.
        uri: --tracking-uri.
        experiment: --experiment.
    """
    tracking = TrackingConfig()
    if config is not None:
        from pipeline.config import load_config

        tracking = load_config(config, list(overrides)).tracking
    changes = {name: value for name, value in (("uri", uri), ("experiment", experiment)) if value}
    return tracking.model_copy(update=changes)


def _asked(question: Callable[[], Any]) -> Any:
    """MLflow's answer, a refusal of its in one sentence."""
    from mlflow.exceptions import MlflowException

    try:
        return question()
    except MlflowException as error:
        raise PipelineError(f"MLflow did not answer: {_first_line(error)}") from error


def _view(run: Any) -> TrackedRunView:
    return TrackedRunView(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        started=int(run.info.start_time or 0),
        ended=run.info.end_time,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        artifact_uri=run.info.artifact_uri or "",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
