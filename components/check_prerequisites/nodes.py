"""Whether the cluster has nodes for the pods a run will ask for, asked of the Kubernetes API: no GPU is held for it.

Called by the first step. Compares what a pod asks for with what each node can give in all (not with what is
free now: a busy node is waited for), its labels and its taints; GPU memory is read from the label that NVIDIA's GPU
feature discovery sets. Limits: needs the right to list nodes (k8s/runner/rbac.yaml), else the check is not made; pod
affinity, quotas and device plugins' own rules are not looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from components.check_prerequisites.check import Finding, State

MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB of one GPU (GPU feature discovery)."""

HARD_EFFECTS = ("NoSchedule", "NoExecute")
SUFFIXES = {"m": Decimal("0.001"), "": Decimal(1)}
SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTP", start=1)}
SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTP", start=1)}
SUFFIXES["K"] = Decimal(1000)


@dataclass(frozen=True)
class Wanted:
    """What the pods of one step ask for.

    Attributes:
        step: the step.
        pods: how many at once, each on a node of its own.
        gpus: of each pod.
        gpu_type: resource name.
        cpu: quantity.
        memory: quantity.
        gpu_memory_gib: needed on each GPU, estimated; None when not known.
        node_selector: labels.
        tolerations: as Kubernetes has them (key, operator, value, effect).
        autoscaled: whether nodes may come when they are asked for.
    """

    step: str
    pods: int
    gpus: int
    gpu_type: str
    cpu: str
    memory: str
    gpu_memory_gib: float | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    autoscaled: bool = False


@dataclass(frozen=True)
class Node:
    """What of a node decides.

    Attributes:
        name: its name.
        labels: its labels.
        taints: those that keep pods away, as (key, value, effect).
        allocatable: quantities by resource.
        ready: whether it takes pods at all.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]
    allocatable: Mapping[str, str]
    ready: bool = True


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number: `500m` is 0.5, `16Gi` is 2**34.

    Args:
        text: the quantity.
    """
    number = text.rstrip("kKMGTPim")
    try:
        return Decimal(number) * SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)


def check_nodes(nodes: Iterable[Node], wanted: Wanted) -> Finding:
    """Whether enough nodes can take a step's pods.

    Args:
        nodes: all of the cluster.
        wanted: what the pods ask for.

    Returns:
        Passed; failed with what each kind of node lacks; not checked when nodes may come or GPU memory is not told.
    """
    name = f"GPU for {wanted.step}"
    fitting, lacks = [], {}
    for node in nodes:
        why = _lacks(node, wanted)
        if why:
            lacks[node.name] = why
        else:
            fitting.append(node)
    if len(fitting) < wanted.pods:
        found = "; ".join(f"{node}: {why}" for node, why in sorted(lacks.items())[:5]) or "there is no other node"
        asked = f"{wanted.gpus} x {wanted.gpu_type}, {wanted.cpu} CPU, {wanted.memory} memory"
        text = f"{wanted.pods} node(s) with {asked} needed, {len(fitting)} found ({found})"
        if wanted.autoscaled:
            return Finding(name, State.UNKNOWN, f"{text}; nodes may come (resources.autoscaled)")
        mend = f"change resources.{wanted.step}, add nodes, or write resources.autoscaled: true where they come by need"
        return Finding(name, State.FAILED, f"{text}; {mend}")
    if wanted.gpu_memory_gib is None:
        return Finding(name, State.PASSED, f"{len(fitting)} node(s) can take it; the memory needed is not known")
    return _check_memory(name, fitting, wanted)


def read_nodes() -> list[Node] | str:
    """The cluster's nodes, or why they cannot be listed."""
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        config.load_incluster_config()
        items = client.CoreV1Api().list_node(_request_timeout=20).items
    except ConfigException as error:
        return f"no service account token in this pod ({error})"
    except ApiException as error:
        if error.status == 403:
            return "the service account may not list nodes; bind it to the role in k8s/runner/rbac.yaml"
        return f"the Kubernetes API answers {error.status}"
    except HTTPError as error:
        return f"the Kubernetes API does not answer ({error})"
    return [
        Node(
            name=item.metadata.name,
            labels=item.metadata.labels or {},
            taints=tuple((t.key, t.value or "", t.effect) for t in item.spec.taints or []),
            allocatable=item.status.allocatable or {},
            ready=not item.spec.unschedulable
            and any(c.type == "Ready" and c.status == "True" for c in item.status.conditions or []),
        )
        for item in items
    ]


def _lacks(node: Node, wanted: Wanted) -> str:
    """Why a node cannot take the pod; empty when it can."""
    if not node.ready:
        return "not ready or cordoned"
    have = quantity(node.allocatable.get(wanted.gpu_type, "0"))
    if have < wanted.gpus:
        return f"{have} x {wanted.gpu_type}"
    for key, value in wanted.node_selector.items():
        if node.labels.get(key) != value:
            return f"label {key} is {node.labels.get(key, 'missing')}"
    for taint in node.taints:
        if taint[2] in HARD_EFFECTS and not any(_bears(toleration, taint) for toleration in wanted.tolerations):
            return f"taint {taint[0]}={taint[1]}:{taint[2]} is not tolerated"
    for resource, asked in (("cpu", wanted.cpu), ("memory", wanted.memory)):
        if quantity(node.allocatable.get(resource, "0")) < quantity(asked):
            return f"{resource} {node.allocatable.get(resource, '0')}"
    return ""


def _bears(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    """Whether a toleration bears a taint (the rules of the Kubernetes scheduler)."""
    key, value, effect = taint
    if toleration.get("effect") not in (None, effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", key)
    return toleration.get("key") == key and (toleration.get("value") or "") == value


def _check_memory(name: str, fitting: list[Node], wanted: Wanted) -> Finding:
    needed = wanted.gpu_memory_gib or 0.0
    told = {node.name: quantity(node.labels[MEMORY_LABEL]) / 1024 for node in fitting if MEMORY_LABEL in node.labels}
    enough = [node for node, gib in told.items() if float(gib) >= needed]
    if len(enough) >= wanted.pods:
        return Finding(name, State.PASSED, f"{len(enough)} node(s) with {needed:.1f} GiB a GPU or more")
    if len(enough) + len(fitting) - len(told) >= wanted.pods:
        message = f"about {needed:.1f} GiB are needed on a GPU; no label {MEMORY_LABEL} says what the nodes have"
        return Finding(name, State.UNKNOWN, message)
    most = max((float(gib) for gib in told.values()), default=0.0)
    message = (
        f"about {needed:.1f} GiB are needed on a GPU, the nodes have at most {most:.1f}; `grpo plan CONFIG --gpu "
        f"{most:.0f}` says what to change, or choose larger GPUs by resources.{wanted.step}.node_selector"
    )
    if wanted.autoscaled:
        return Finding(name, State.UNKNOWN, message)
    return Finding(name, State.FAILED, message)
