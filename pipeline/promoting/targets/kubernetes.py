"""The kubernetes target: manifests by server-side apply, a rollout waited for.

Opened by `open_target`. Three calls on each object's own path, nothing else: PATCH with `application/apply-patch+yaml`
(first as a dry run, so that the API server refuses what it would refuse before anything changes), GET, DELETE. Limits:
the probe asks `serving.endpoint`, or the service's name inside the cluster, which only a pod reaches.
"""

import difflib
import time
from typing import Any

import yaml

from components.errors import BadInputError, PipelineError
from pipeline.promoting.promotion_log import slug
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.manifests import FIELD_MANAGER, PORT, PREFIX, Manifest, annotations, object_name, render
from pipeline.promoting.targets.target import Served

POLL_SECONDS = 2.0

PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
    "Service": "/api/v1/namespaces/{namespace}/services/{name}",
    "InferenceService": "/apis/serving.kserve.io/v1beta1/namespaces/{namespace}/inferenceservices/{name}",
}


class KubernetesTarget:
    """Objects in a namespace."""

    def __init__(self, config: ServingConfig, api: Any = None, poll_s: float = POLL_SECONDS) -> None:
        """Name the cluster; nothing is contacted yet.

        Args:
            config: the serving config.
            api: a `kubernetes.client.ApiClient`; None opens one by the config.
            poll_s: seconds between two looks at a rollout.
        """
        self._config = config
        self._client = api
        self._poll_s = poll_s

    def changes(self, served: Served) -> str:
        """See `Target.changes`: the manifests' diff against what we applied last, as the API server would store it."""
        lines: list[str] = []
        for wanted in render(served, self._config):
            live = self._get(wanted)
            before = _comparable(live) if live else {}
            after = _comparable(self._apply(wanted, dry_run=True))
            name = f"{wanted['kind']}/{wanted['metadata']['name']}"
            lines += difflib.unified_diff(_lines(before), _lines(after), name, name, lineterm="")
        return "\n".join(lines)

    def serves(self, served: Served) -> bool:
        """See `Target.serves`."""
        return all(
            (live := self._get(wanted)) is not None and _is_version(live, served) and _ready(live)
            for wanted in render(served, self._config)
        )

    def deployed(self, name: str) -> str | None:
        """See `Target.deployed`."""
        live = self._call("GET", self._kinds()[0], f"grpo-{slug(name)}")
        found = (live or {}).get("metadata", {}).get("annotations", {}).get(f"{PREFIX}version")
        return None if found is None else str(found)

    def deploy(self, served: Served) -> None:
        """See `Target.deploy`."""
        objects = render(served, self._config)
        for wanted in objects:
            self._apply(wanted, dry_run=True)
        for wanted in objects:
            self._apply(wanted, dry_run=False)

    def wait(self, served: Served) -> str | None:
        """See `Target.wait`."""
        first = render(served, self._config)[0]
        deadline = time.monotonic() + self._config.ready_timeout_s
        while True:
            live = self._get(first)
            if live is not None and _is_version(live, served) and _ready(live):
                return self._url(served, live)
            failure = _failure(live) if live else None
            if failure or time.monotonic() >= deadline:
                name = f"{first['kind']} {first['metadata']['name']}"
                raise PipelineError(
                    f"{name} did not become ready"
                    + (f": {failure}" if failure else f" in {self._config.ready_timeout_s:.0f} s")
                    + f"; look at it: kubectl -n {self._config.kubernetes.namespace} describe {name.replace(' ', '/')}"
                )
            time.sleep(self._poll_s)

    def remove(self, name: str) -> None:
        """See `Target.remove`."""
        for kind in self._kinds():
            self._call("DELETE", kind, f"grpo-{slug(name)}")

    def _kinds(self) -> tuple[str, ...]:
        return ("InferenceService",) if self._config.kubernetes.kind == "kserve" else ("Deployment", "Service")

    def _url(self, served: Served, live: Manifest) -> str:
        if self._config.endpoint:
            return self._config.endpoint
        if live["kind"] == "InferenceService" and live.get("status", {}).get("url"):
            return str(live["status"]["url"])
        return f"http://{object_name(served)}.{self._config.kubernetes.namespace}.svc:{PORT}"

    def _get(self, wanted: Manifest) -> Manifest | None:
        return self._call("GET", wanted["kind"], wanted["metadata"]["name"])

    def _apply(self, wanted: Manifest, *, dry_run: bool) -> Manifest:
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")] + ([("dryRun", "All")] if dry_run else [])
        answer = self._call("PATCH", wanted["kind"], wanted["metadata"]["name"], query, wanted)
        if answer is None:
            raise PipelineError(
                f"the cluster does not know {wanted['apiVersion']} {wanted['kind']}, or has no namespace "
                f"{self._config.kubernetes.namespace}; install it, or make the namespace"
            )
        return answer

    def _call(
        self, method: str, kind: str, name: str, query: list[tuple[str, str]] | None = None, body: Any = None
    ) -> Manifest | None:
        """One call; None where there is no such object."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/apply-patch+yaml"
        try:
            answer = self._api().call_api(
                PATHS[kind].format(namespace=self._config.kubernetes.namespace, name=name),
                method,
                query_params=query or [],
                header_params=headers,
                body=body,
                response_type="object",
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=30,
            )
        except ApiException as error:
            if error.status == 404:
                return None
            raise PipelineError(f"Kubernetes refused {method} {kind} {name}: {_message(error)}") from error
        except HTTPError as error:
            raise PipelineError(f"the Kubernetes API server does not answer: {error}") from error
        return dict(answer) if isinstance(answer, dict) else {}

    def _api(self) -> Any:
        if self._client is None:
            from kubernetes import client, config

            context = self._config.kubernetes.context
            try:
                if context is None:
                    config.load_config()
                else:
                    config.load_kube_config(context=context)
            except config.ConfigException as error:
                raise BadInputError(f"no Kubernetes cluster is configured here ({error}); set KUBECONFIG") from error
            self._client = client.ApiClient()
        return self._client


def _is_version(live: Manifest, served: Served) -> bool:
    found = live.get("metadata", {}).get("annotations", {})
    return all(found.get(key) == value for key, value in annotations(served).items())


def _ready(live: Manifest) -> bool:
    """Whether an object's rollout is done (a Service has none)."""
    status = live.get("status", {})
    if live["kind"] == "Service":
        return True
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return False
    if live["kind"] == "Deployment":
        wanted = live["spec"].get("replicas", 1)
        counts = [status.get(name, 0) for name in ("updatedReplicas", "availableReplicas", "replicas")]
        return counts == [wanted, wanted, wanted]
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions", []))


def _failure(live: Manifest) -> str | None:
    """Why a rollout will not succeed, where the cluster says so."""
    for item in live.get("status", {}).get("conditions", []):
        if item.get("type") == "Progressing" and item.get("reason") == "ProgressDeadlineExceeded":
            return str(item.get("message") or item["reason"])
        if item.get("type") == "ReplicaFailure" and item.get("status") == "True":
            return str(item.get("message") or item.get("reason"))
    return None


def _comparable(live: Manifest) -> Manifest:
    """An object without what the API server keeps for itself."""
    metadata = {
        key: value
        for key, value in live.get("metadata", {}).items()
        if key in ("name", "namespace", "labels", "annotations")
    }
    metadata["annotations"] = {
        key: value for key, value in metadata.get("annotations", {}).items() if key.startswith(PREFIX)
    }
    return {"apiVersion": live.get("apiVersion"), "kind": live.get("kind"), "metadata": metadata} | {
        "spec": live.get("spec")
    }


def _lines(content: Manifest) -> list[str]:
    return yaml.safe_dump(content, sort_keys=True).splitlines() if content else []


def _message(error: Any) -> str:
    try:
        return str(yaml.safe_load(error.body)["message"])
    except (TypeError, KeyError, yaml.YAMLError):
        return f"{error.status} {error.reason}"
