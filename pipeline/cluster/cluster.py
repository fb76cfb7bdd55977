"""A run on a Kubeflow cluster, through KFP's client: started, followed, stopped, its logs read.

Called by commands_cluster.py. Credentials come from files, the environment or the pod's service account, never from the
command line, and are not kept. Limits: KFP has a step's log while its pod exists or the log is archived; where it has
none, the pods are asked for through the Kubernetes API, by their labels.
"""

import contextlib
import io
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from components.errors import BadInputError, ExitCode, PipelineError
from components.sections import content_hash
from pipeline.config import RunConfig
from pipeline.pods import STEP_LABEL

POLL_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
OUTAGE_SECONDS = 600.0
"""How long a waiting command bears an API that does not answer."""

STEPS = (
    ("check_prerequisites", "check prerequisites"),
    ("import_model", "import model"),
    ("prepare_dataset", "prepare dataset"),
    ("smoke_test_rewards", "smoke test rewards"),
    ("train_grpo", "train"),
    ("merge_lora", "merge"),
    ("evaluate_holdout", "evaluate (base)"),
    ("evaluate_holdout_2", "evaluate (candidate)"),
    ("judge_candidate", "judge"),
    ("register_model", "register"),
)
"""Steps and labels in the order of the graph; KFP numbers the second task of a step."""

ENDED = {"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"}
PLACEHOLDER = "registry.example.com/"


@dataclass(frozen=True)
class Connection:
    """How the KFP API is reached.

    Attributes:
        host: its URL.
        token: bearer token; None sends none.
        cookie: value of the Cookie header; None sends none.
        service_account: whether to use the token of the pod this runs in.
        ca_cert: file of CA certificates; None takes the system's.
        verify: whether TLS certificates are checked.
        namespace: the profile's, where KFP has several; None where it has one.
    """

    host: str
    token: str | None = None
    cookie: str | None = None
    service_account: bool = False
    ca_cert: Path | None = None
    verify: bool = True
    namespace: str | None = None

    def __repr__(self) -> str:
        """Without credentials."""
        return f"Connection({self.host!r}, namespace={self.namespace!r})"


@dataclass(frozen=True)
class StepState:
    """One step of a run.

    Attributes:
        name: the step; the second evaluation is evaluate_holdout_2.
        label: for people.
        state: KFP's (PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED, ...), or an empty text before it is scheduled.
        seconds: how long it has run, None before it starts.
        message: KFP's, of a failure.
    """

    name: str
    label: str
    state: str
    seconds: float | None
    message: str


@dataclass(frozen=True)
class RunState:
    """A run.

    Attributes:
        run_id: KFP's id.
        name: display name.
        state: KFP's.
        steps: its steps, in the order of the graph.
        message: KFP's, of a failure.
        link: its page.
    """

    run_id: str
    name: str
    state: str
    steps: tuple[StepState, ...]
    message: str
    link: str

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED

    @property
    def failed_step(self) -> StepState | None:
        """The first step that failed."""
        return next((step for step in self.steps if step.state == "FAILED"), None)


class Cluster:
    """A KFP installation."""

    def __init__(self, connection: Connection) -> None:
        """Reach it.

        Args:
            connection: how.

        Raises:
            BadInputError: when it does not answer, or refuses the credentials.
        """
        self.connection = connection
        self._check()
        self._client = self._make_client()

    def submit(self, config: RunConfig, *, caching: bool, experiment: str) -> RunState:
        """Upload the pipeline if this version of it is not there yet, and start a run.

        Args:
            config: from cluster_config.py.
            caching: whether pure steps may be answered from a cache.
            experiment: name of the KFP experiment.

        Raises:
            BadInputError: when an image is only the placeholder of the defaults.
        """
        from pipeline.cluster.cluster_graph import PIPELINE, compile_for_cluster, pipeline_parameters

        refuse_placeholder_images(config)
        with TemporaryDirectory() as folder, self._speaking("starting the run"):
            package = Path(folder) / "pipeline.yaml"
            compile_for_cluster(config, package, caching=caching)
            version_name = f"{config.run.name}-{content_hash(package.read_text(encoding='utf-8'))[:12]}"
            pipeline_id, version_id = self._upload(package, PIPELINE, version_name)
            found = self._client.create_experiment(experiment, namespace=self.connection.namespace)
            run = self._client.run_pipeline(
                found.experiment_id,
                config.run.name,
                params=pipeline_parameters(config),
                pipeline_id=pipeline_id,
                version_id=version_id,
                service_account=config.resources.service_account,
            )
        return self.state(run.run_id)

    def state(self, run_id: str) -> RunState:
        """Where a run stands.

        Args:
            run_id: KFP's id.
        """
        with self._speaking(f"reading run {run_id}"):
            run = self._client.get_run(run_id)
        details = (run.run_details.task_details if run.run_details else None) or []
        return RunState(
            run_id=run.run_id,
            name=run.display_name or "",
            state=str(run.state or "PENDING"),
            steps=tuple(_step_state(name, label, details) for name, label in STEPS),
            message=(run.error.message if run.error else "") or "",
            link=self.link(run.run_id),
        )

    def find(self, text: str) -> str:
        """The id of a run by its id or its name (the newest of that name).

        Args:
            text: as a person wrote it.

        Raises:
            BadInputError: when there is none.
        """
        if _is_id(text):
            return text
        condition = {"operation": "EQUALS", "key": "display_name", "stringValue": text}
        with self._speaking("listing runs"):
            listed = self._client.list_runs(
                page_size=1,
                sort_by="created_at desc",
                namespace=self.connection.namespace,
                filter=json.dumps({"predicates": [condition]}),
            )
        if not listed.runs:
            raise BadInputError(f"no run is named {text!r} at {self.connection.host}; give the id that submit printed")
        return str(listed.runs[0].run_id)

    def wait(self, run_id: str, *, on_change: Callable[[StepState], None], poll_s: float = POLL_SECONDS) -> RunState:
        """Follow a run to its end.

        Args:
            run_id: KFP's id.
            on_change: called with each step whose state changed.
            poll_s: seconds between two looks.

        Raises:
            PipelineError: when the API does not answer for a long while; the run goes on.
        """
        seen: dict[str, str] = {}
        silent_since: float | None = None
        while True:
            try:
                now = self.state(run_id)
                silent_since = None
            except BadInputError:
                raise
            except PipelineError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > OUTAGE_SECONDS:
                    raise
                time.sleep(poll_s)
                continue
            for step in now.steps:
                if step.state and seen.get(step.name) != step.state:
                    seen[step.name] = step.state
                    on_change(step)
            if now.ended:
                return now
            time.sleep(poll_s)

    def cancel(self, run_id: str) -> None:
        """Stop a run; its pods get time to save.

        Args:
            run_id: KFP's id.
        """
        with self._speaking(f"stopping run {run_id}"):
            self._client.terminate_run(run_id)

    def outcome(self, run: RunState) -> tuple[ExitCode, str]:
        """The exit code a run's end stands for, and why.

        Args:
            run: an ended run.

        Returns:
            What the failed step itself said, where its log can be read.
        """
        if run.state in ("SUCCEEDED", "SKIPPED"):
            return ExitCode.PASSED, ""
        if run.state == "CANCELED":
            return ExitCode.RESUMABLE, "the run was stopped; submitted again it goes on from its last checkpoint"
        failed = run.failed_step
        if failed is None:
            return ExitCode.ERROR, run.message or "the run failed before any step did; its page says more"
        said = None
        with contextlib.suppress(PipelineError):
            said = _own_words(self.logs(run.run_id, failed.name))
        if said is not None:
            return ExitCode(said["exit_code"]), f"{failed.label}: {said['message']}"
        return ExitCode.ERROR, f"{failed.label}: {failed.message or run.message or 'failed without a word'}"

    def logs(self, run_id: str, step: str, *, follow: bool = False) -> Iterator[str]:
        """Lines a step's pods printed, one pod a try.

        Args:
            run_id: KFP's id.
            step: a step's name.
            follow: whether to go on until the pod ends.

        Raises:
            BadInputError: when there is no such step, or it has not started.
            PipelineError: when neither KFP nor the cluster has the log.
        """
        known = [name for name, _ in STEPS]
        if step not in known:
            raise BadInputError(f"step {step!r} is unknown; write one of {', '.join(known)}")
        with self._speaking(f"reading run {run_id}"):
            run = self._client.get_run(run_id)
        details = (run.run_details.task_details if run.run_details else None) or []
        pods = _pods(details, step)
        if not pods:
            raise BadInputError(f"{step} has no pod yet, or its result was reused; `grpo status {run_id}` says which")
        lines = self._kfp_logs(run_id, pods[-1], follow=follow)
        try:
            yield next(lines)
        except StopIteration:
            return
        except _NoLogError as error:
            yield from self._pod_logs(run_id, step, follow=follow, why=str(error))
            return
        yield from lines

    def link(self, run_id: str) -> str:
        """A run's page."""
        return f"{self.connection.host.rstrip('/')}/#/runs/details/{run_id}"

    def _check(self) -> None:
        """One call with a short timeout, since KFP's client waits half a minute for a host that is not there."""
        host = self.connection.host
        if not host.startswith(("http://", "https://")):
            raise BadInputError(f"--host {host!r} is no URL; write http(s)://host of the KFP API, /pipeline behind it")
        if self.connection.ca_cert is not None and not self.connection.ca_cert.is_file():
            raise BadInputError(f"--ca-cert {self.connection.ca_cert} does not exist; name a file of CA certificates")
        try:
            with self._open("/apis/v2beta1/healthz") as answer:
                json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise BadInputError(
                    f"{host} refuses the credentials ({error.code}); give a token (--token-file or KFP_TOKEN), a "
                    "cookie (--cookie-file or KFP_COOKIE), or --service-account inside the cluster"
                ) from error
            raise BadInputError(f"{host} answers {error.code}; is it the KFP API (often .../pipeline)?") from error
        except ssl.SSLError as error:
            raise BadInputError(f"{host}: {error}; give its CA by --ca-cert FILE") from error
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            mend = (
                "give its CA by --ca-cert FILE" if isinstance(reason, ssl.SSLError) else "check it, or port-forward it"
            )
            raise BadInputError(f"--host {host} does not answer ({reason}); {mend}") from error
        except ValueError as error:
            raise BadInputError(
                f"{host} answers with a page and not as the KFP API does; a login page? Give a cookie or a token"
            ) from error

    def _make_client(self) -> Any:
        from kfp.client import Client
        from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

        connection = self.connection
        warnings.filterwarnings("ignore", category=FutureWarning, module="kfp")
        if not connection.verify:
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the command said it once
        return Client(
            host=connection.host,
            existing_token=connection.token,
            cookies=connection.cookie,
            credentials=ServiceAccountTokenVolumeCredentials() if connection.service_account else None,
            ssl_ca_cert=str(connection.ca_cert) if connection.ca_cert else None,
            verify_ssl=connection.verify,
            # The client takes its default for "none": an installation for one user refuses requests that name one.
            namespace=connection.namespace or "kubeflow",
        )

    def _upload(self, package: Path, name: str, version_name: str) -> tuple[str, str]:
        """The pipeline's id and the version's, uploaded where they are not there."""
        pipeline_id = self._client.get_pipeline_id(name)
        if pipeline_id is None:
            pipeline_id = self._client.upload_pipeline(
                str(package), pipeline_name=name, namespace=self.connection.namespace
            ).pipeline_id
        condition = {"operation": "EQUALS", "key": "display_name", "stringValue": version_name}
        listed = self._client.list_pipeline_versions(
            pipeline_id, page_size=1, filter=json.dumps({"predicates": [condition]})
        )
        if listed.pipeline_versions:
            return pipeline_id, listed.pipeline_versions[0].pipeline_version_id
        version = self._client.upload_pipeline_version(str(package), version_name, pipeline_id=pipeline_id)
        return pipeline_id, version.pipeline_version_id

    @contextlib.contextmanager
    def _speaking(self, doing: str) -> Iterator[None]:
        """While the client speaks to the API: its prints are dropped, its errors become ours."""
        import kfp_server_api
        import urllib3

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        except kfp_server_api.ApiException as error:
            text = _reason(error)
            if error.status == 404:
                raise BadInputError(f"{doing}: {self.connection.host} knows no such thing ({text})") from error
            if error.status in (400, 401, 403, 409):
                raise BadInputError(f"{doing}: {self.connection.host} refuses ({error.status}): {text}") from error
            raise PipelineError(f"{doing}: {self.connection.host} answers {error.status}: {text}") from error
        except urllib3.exceptions.HTTPError as error:
            raise PipelineError(f"{doing}: {self.connection.host} does not answer ({error})") from error

    def _kfp_logs(self, run_id: str, pod: str, *, follow: bool) -> Iterator[str]:
        quoted = urllib.parse.quote(pod, safe="")
        path = f"/apis/v1alpha1/runs/{run_id}/nodes/{quoted}/log?follow={'true' if follow else 'false'}"
        try:
            with self._open(path, timeout_s=None if follow else TIMEOUT_SECONDS) as answer:
                for line in answer:
                    yield line.decode(errors="replace").rstrip("\n")
        except (urllib.error.URLError, OSError) as error:
            raise _NoLogError(f"KFP has no log of {pod}: {getattr(error, 'reason', error)}") from error

    def _pod_logs(self, run_id: str, step: str, *, follow: bool, why: str) -> Iterator[str]:
        """Logs through the Kubernetes API; pods carry the step's name and the run's id."""
        from kubernetes import client, config
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        namespace = self.connection.namespace or "kubeflow"
        selector = f"pipeline/runid={run_id},{STEP_LABEL}={step.removesuffix('_2')}"
        try:
            config.load_config()
            api = client.CoreV1Api()
            pods = api.list_namespaced_pod(namespace, label_selector=selector, _request_timeout=TIMEOUT_SECONDS).items
            if pods:
                newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp).metadata.name
                answer = api.read_namespaced_pod_log(
                    newest, namespace, container="main", follow=follow, _preload_content=False
                )
                for line in answer:
                    yield line.decode(errors="replace").rstrip("\n")
                return
        except (ConfigException, ApiException, HTTPError, OSError) as error:
            why = f"{why}; the cluster: {str(error).splitlines()[0]}"
        raise PipelineError(f"{why}; try: kubectl logs -n {namespace} -l {selector} -c main --tail=-1")

    def _open(self, path: str, timeout_s: float | None = TIMEOUT_SECONDS) -> Any:
        """GET a path of the API, credentials included."""
        connection = self.connection
        headers = {}
        token = connection.token
        if connection.service_account:
            from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

            try:
                token = ServiceAccountTokenVolumeCredentials()._get_token()
            except OSError as error:
                raise BadInputError(
                    f"--service-account: no token in this pod ({error}); mount a projected token for the audience "
                    "pipelines.kubeflow.org (docs/cluster.md), or set KF_PIPELINES_SA_TOKEN_PATH"
                ) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if connection.cookie:
            headers["Cookie"] = connection.cookie
        context = ssl.create_default_context(cafile=str(connection.ca_cert) if connection.ca_cert else None)
        if not connection.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(connection.host.rstrip("/") + path, headers=headers)  # noqa: S310 (http checked)
        return urllib.request.urlopen(request, timeout=timeout_s, context=context)  # noqa: S310


class _NoLogError(Exception):
    """KFP has not the log."""


def refuse_placeholder_images(config: RunConfig) -> None:
    """Refuse to start pods from the images that stand in the defaults.

    Args:
        config: the run config.

    Raises:
        BadInputError: naming the field.
    """
    for family, image in config.resources.images:
        if image.startswith(PLACEHOLDER):
            raise BadInputError(
                f"resources.images.{family}: {image} is only an example; push your images (`make images`) and name "
                "them, best by digest"
            )


def moving_images(config: RunConfig) -> list[str]:
    """Images named by a tag, which may be pushed anew; a digest may not.

    Args:
        config: the run config.
    """
    return [image for _, image in config.resources.images if "@sha256:" not in image]


def _step_state(name: str, label: str, details: list[Any]) -> StepState:
    task = _task(details, name)
    if task is None:
        return StepState(name, label, "", None, "")
    seconds = None
    if task.start_time is not None and task.start_time.year > 1970:
        end = task.end_time if task.end_time is not None and task.end_time.year > 1970 else None
        end_s = end.timestamp() if end else time.time()
        seconds = max(0.0, end_s - task.start_time.timestamp())
    message = (task.error.message if task.error else "") or ""
    return StepState(name, label, str(task.state or ""), seconds, message)


def _task(details: list[Any], name: str) -> Any:
    """A step's task among all nodes of the workflow."""
    wanted = name.replace("_", "-")
    return next((task for task in details if task.display_name == wanted), None)


def _pods(details: list[Any], name: str) -> list[str]:
    """Pods that did a step's work, oldest first: the ends of its tree, without KFP's drivers."""
    task = _task(details, name)
    if task is None:
        return []
    by_pod = {entry.pod_name: entry for entry in details if entry.pod_name}
    leaves: list[Any] = []
    waiting, seen = [task], set()
    while waiting:
        entry = waiting.pop()
        if id(entry) in seen:
            continue
        seen.add(id(entry))
        children = [by_pod[c.pod_name] for c in entry.child_tasks or [] if c.pod_name in by_pod]
        children = [child for child in children if not (child.display_name or "").endswith("-driver")]
        # Below a driver and below an executor KFP chains what comes next; another step's tree is not this one's.
        children = [child for child in children if child.display_name not in _task_names() or child is task]
        waiting += children
        if not children and entry.pod_name:
            leaves.append(entry)
    leaves.sort(key=lambda entry: (entry.create_time is not None, str(entry.create_time)))
    return [entry.pod_name for entry in leaves]


def _task_names() -> set[str]:
    return {name.replace("_", "-") for name, _ in STEPS}


def _own_words(lines: Iterator[str]) -> dict[str, Any] | None:
    """The last event in which a step said how it failed (components/steps.py writes it as a log line)."""
    said = None
    for line in lines:
        start = line.find('{"time"')
        if start < 0 or '"failed"' not in line:
            continue
        with contextlib.suppress(ValueError):
            event = json.loads(line[start:])
            if event.get("event") == "failed" and event.get("exit_code") in list(ExitCode):
                said = event
    return said


def _reason(error: Any) -> str:
    """What the API says in words."""
    try:
        body = json.loads(error.body)
        return str(body.get("error_message") or body.get("error") or body.get("message") or error.reason)
    except (ValueError, TypeError, AttributeError):
        return str(error.reason)


def _is_id(text: str) -> bool:
    """Whether a text is a UUID."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(c in "0123456789abcdef-" for c in text.lower())
