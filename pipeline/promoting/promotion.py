"""Promotes a registered version to champion, with evidence, and takes it back: the whole of it or nothing.

Called by commands_serving.py. The order: read the version, verify every byte of its weights, weigh the evidence, show
the plan, take the lock, write the journal, move the alias, deploy, wait, probe, log. Whatever fails puts alias and
target back. A promotion that was killed left its journal: the next command that holds the lock finishes it when the
probe had passed, and undoes it otherwise. Limits: moving the alias and deploying are two systems; between them a reader
of the alias may see the new version before the endpoint has it.
"""

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, GateFailedError, PipelineError
from components.storage.config import StoreConfig
from components.storage.lease import Lease, held, hold
from components.storage.store import open_store
from pipeline.promoting.evidence import Finding, judge_promotion
from pipeline.promoting.promotion_log import Action, Entry, Journal, PromotionLog, last_serving, previous_champion
from pipeline.promoting.registered import (
    RegisteredVersion,
    champion,
    mlflow_errors,
    read_stored_evaluation,
    read_version,
    run_config,
    set_champion,
)
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.target import Served, Target, open_target

if TYPE_CHECKING:
    from mlflow import MlflowClient

STORE_TAG = "grpo.promotions"
"""Tag of the registered model: the store that holds its lock, journal and log."""

OnStep = Callable[[str, str], None]
"""Called with the name of a step that begins, and what it is about."""


@dataclass(frozen=True)
class Desk:
    """What every promotion of one model needs.

    Attributes:
        client: MLflow.
        name: the registered model.
        store: where weights, lock and log are.
        home: the state folder (.grpo).
        on_step: told of each step.
        wait_s: seconds to wait for another promotion to end.
    """

    client: "MlflowClient"
    name: str
    store: StoreConfig
    home: Path
    on_step: OnStep
    wait_s: float = 0.0

    @property
    def log(self) -> PromotionLog:
        """Log and journal."""
        return PromotionLog(open_store(self.store), self.name)

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[Lease]:
        """Be the only one who promotes this model.

        Raises:
            PipelineError: another promotion is under way; says whose.
        """
        with hold(open_store(self.store), self.log.lease, what=what, wait_s=self.wait_s) as lease:
            yield lease


@dataclass(frozen=True)
class Request:
    """What a person asks for.

    Attributes:
        version: the version to serve.
        serving: where.
        by: who asks.
        reason: why.
        force: why a failed gate is to be overridden; empty for not.
        margin: how much of a share the version may fall behind the champion.
        max_flips: share of the probe's replies that may differ from the recorded ones.
        dry_run: show the plan and stop.
        action: what the log calls it.
    """

    version: RegisteredVersion
    serving: ServingConfig
    by: str
    reason: str = ""
    force: str = ""
    margin: float = 0.05
    max_flips: float = 0.1
    dry_run: bool = False
    action: Action = "promoted"


@dataclass(frozen=True)
class Plan:
    """What a promotion would do.

    Attributes:
        version: the version to be served.
        champion: the version served now, or None.
        findings: the gates.
        changes: what changes on the target.
        nothing_to_do: the version is champion and served already.
    """

    version: RegisteredVersion
    champion: RegisteredVersion | None
    findings: list[Finding]
    changes: str
    nothing_to_do: bool

    @property
    def failed(self) -> list[Finding]:
        """Gates that did not pass."""
        return [finding for finding in self.findings if not finding.passed]


OnPlan = Callable[[Plan], None]
"""Shown the plan before anything is changed."""


@dataclass(frozen=True)
class Promoted:
    """How it ended.

    Attributes:
        plan: what was planned.
        changed: whether anything was changed.
        url: the endpoint; None where there is none to ask.
        evidence: one sentence a gate or check.
    """

    plan: Plan
    changed: bool
    url: str | None = None
    evidence: list[str] = field(default_factory=list)


def open_desk(
    client: "MlflowClient",
    name: str,
    *,
    home: Path,
    on_step: OnStep,
    store: StoreConfig | None = None,
    wait_s: float = 0.0,
) -> Desk:
    """Find the store that a model's promotions are kept in.

    Args:
        client: MLflow.
        name: the registered model; it has a version.
        home: the state folder.
        on_step: told of each step.
        store: as a person says; None takes the one used before, else the one the newest version lies in.
        wait_s: seconds to wait for another promotion to end.

    Raises:
        BadInputError: the person's store is not the one used before.
    """
    from pipeline.promoting.registered import versions

    newest = versions(client, name)[-1]
    kept = client.get_registered_model(name).tags.get(STORE_TAG)
    if kept is not None:
        used = StoreConfig.from_json(kept)
        if store is not None and open_store(store).uri != open_store(used).uri:
            raise BadInputError(
                f"the promotions of {name} are kept in {used.uri}, not in {store.uri}; leave --store out, so that two "
                "promotions cannot miss each other"
            )
        store = store or used
    if store is None:
        store = _store_of(client, read_version(client, name, newest))
    return Desk(client, name, store, home, on_step, wait_s)


def promote(desk: Desk, request: Request, on_plan: OnPlan | None = None) -> Promoted:
    """Make a version the champion, served and probed; or leave everything as it was.

    Args:
        desk: from `open_desk`.
        request: what is asked for.
        on_plan: shown the plan before anything is changed.

    Raises:
        GateFailedError: a gate failed, or the endpoint's replies are not the recorded ones; everything was put back.
        PipelineError: weights, lock, target or endpoint failed; everything was put back.
    """
    _settle_first(desk, request.dry_run)
    plan = weigh(desk, request)
    if on_plan:
        on_plan(plan)
    _refuse_failed(plan, request)
    if request.dry_run or plan.nothing_to_do:
        return Promoted(plan, changed=False, evidence=[str(finding) for finding in plan.findings])
    desk.on_step("lock", f"promotions of {desk.name} in {desk.store.uri}")
    with desk.lock(f"a promotion by {request.by}") as lease:
        _settle_locked(desk)
        if champion(desk.client, desk.name) != (plan.champion.version if plan.champion else None):
            if request.action == "rolled back":
                raise PipelineError(f"another promotion of {desk.name} was first; look at it, then run again")
            # Another promotion was first: what was weighed was another champion.
            plan = weigh(desk, request)
            if on_plan:
                on_plan(plan)
            _refuse_failed(plan, request)
            if plan.nothing_to_do:
                return Promoted(plan, changed=False)
        return _carry_out(desk, request, plan, lease)


def rollback(
    desk: Desk,
    *,
    serving: ServingConfig | None,
    by: str,
    reason: str,
    max_flips: float,
    dry_run: bool,
    on_plan: OnPlan | None = None,
) -> Promoted:
    """Go back to the champion before, the same way; no gate is asked, the probe is.

    Args:
        desk: from `open_desk`.
        serving: where; None takes what the champion was promoted with.
        by: who asks.
        reason: why.
        max_flips: share of the probe's replies that may differ.
        dry_run: show the plan and stop.
        on_plan: shown the plan.

    Raises:
        BadInputError: there is nothing to go back to.
    """
    _settle_first(desk, dry_run)
    now = champion(desk.client, desk.name)
    if now is None:
        raise BadInputError(f"{desk.name} has no champion; there is nothing to roll back")
    before = previous_champion(desk.log.entries(), now)
    if before is None:
        raise BadInputError(
            f"the log knows no champion of {desk.name} before {now}; `grpo history {desk.name}` shows it, "
            f"`grpo promote {desk.name}/VERSION` serves any version"
        )
    request = Request(
        version=read_version(desk.client, desk.name, before),
        serving=serving or last_target(desk),
        by=by,
        reason=reason,
        max_flips=max_flips,
        dry_run=dry_run,
        action="rolled back",
    )
    return promote(desk, request, on_plan)


def last_target(desk: Desk) -> ServingConfig:
    """Where the model was served last, else a server on this machine.

    Args:
        desk: from `open_desk`.
    """
    kept = last_serving(desk.log.entries())
    return ServingConfig() if kept is None else ServingConfig.model_validate(kept)


def weigh(desk: Desk, request: Request) -> Plan:
    """Verify the weights, weigh the evidence, see what would change. Changes nothing.

    Args:
        desk: from `open_desk`.
        request: what is asked for.

    Raises:
        DamagedArtifactError: the weights are not what was registered; names the file.
    """
    version = request.version
    desk.on_step("read", f"{version}: verdict {version.tags.get('verdict', 'absent')}, weights {version.weights.uri}")
    desk.on_step("verify", "every byte of the weights against their manifest")
    open_store_of(desk, version).verify(version.weights)
    number = champion(desk.client, desk.name)
    served_now = None if number is None else read_version(desk.client, desk.name, number)
    same = served_now is not None and served_now.version == version.version
    desk.on_step(
        "evidence", f"against {served_now}" if served_now and not same else "no other champion to compare with"
    )
    findings = (
        [] if request.action == "rolled back" else judge_promotion(version, served_now, desk.store, request.margin)
    )
    target = open_target(request.serving, desk.home)
    served = _served(desk, version)
    return Plan(version, served_now, findings, target.changes(served), same and target.serves(served))


def settle(desk: Desk) -> str | None:
    """Finish or undo a promotion that was interrupted, when nobody owns it any more.

    Args:
        desk: from `open_desk`.

    Returns:
        What was done, in words; None when there was nothing to do, or it is still under way.
    """
    log = desk.log
    if log.journal() is None or held(open_store(desk.store), log.lease):
        return None
    with desk.lock("repairing an interrupted promotion"):
        return _settle_locked(desk)


def open_store_of(desk: Desk, version: RegisteredVersion) -> Any:
    """The folder above a version's weights as a store, with the desk's S3 options.

    Args:
        desk: from `open_desk`.
        version: whose weights.
    """
    options = desk.store.model_dump(exclude={"uri"})
    root = version.weights.uri.rpartition("/")[0]
    if root.startswith("file://"):
        options.pop("endpoint_url")
    return open_store(StoreConfig(uri=root, **options))


def _store_of(client: "MlflowClient", version: RegisteredVersion) -> StoreConfig:
    """The store a version's weights lie in (as `merged/<hash>`), with the S3 options of its run."""
    root = version.weights.uri.rpartition("/")[0].rpartition("/")[0]
    if root.startswith("file://"):
        return StoreConfig(uri=root)
    return StoreConfig.model_validate(run_config(client, version)["store"] | {"uri": root})


def _settle_first(desk: Desk, dry_run: bool) -> None:
    if not dry_run:
        settle(desk)
    elif desk.log.journal() is not None:
        desk.on_step("notice", "another promotion is under way or was interrupted; a dry run leaves it")


def _refuse_failed(plan: Plan, request: Request) -> None:
    if plan.failed and not request.force and not plan.nothing_to_do:
        raise GateFailedError(
            "; ".join(finding.sentence for finding in plan.failed)
            + ". Nothing was changed; --force REASON overrides this and is recorded"
        )


def _carry_out(desk: Desk, request: Request, plan: Plan, lease: Lease) -> Promoted:
    """The effects, journal first; everything is put back when one fails. The lock is held."""
    version, log = request.version, desk.log
    target = open_target(request.serving, desk.home)
    entry = Entry(
        id=secrets.token_hex(8),
        at=_now(),
        action=request.action,
        version=version.version,
        previous=plan.champion.version if plan.champion else None,
        by=request.by,
        reason=request.reason,
        forced=request.force if plan.failed else "",
        target=request.serving.in_words(),
        serving=request.serving.model_dump(mode="json"),
        evidence=[str(finding) for finding in plan.findings],
    )
    with mlflow_errors():
        desk.client.set_registered_model_tag(desk.name, STORE_TAG, desk.store.to_json())
    host, home = socket.gethostname(), str(desk.home.absolute())
    journal = Journal(entry, "begun", host, home, target.deployed(desk.name))
    log.begin(journal)
    try:
        url, checks = _effects(desk, request, target, lease)
        lease.check()
        journal = log.advance(journal, "live", replace(entry, evidence=entry.evidence + checks))
    except BaseException as error:
        if _is_ours(lease):
            _undo_after(desk, journal, log, error)
        raise
    _finish(desk, journal, log)
    return Promoted(plan, changed=True, url=url, evidence=journal.entry.evidence)


def _is_ours(lease: Lease) -> bool:
    """Whether the lock is still held; whoever took it over has put everything back."""
    try:
        lease.check()
    except PipelineError:
        return False
    return True


def _effects(desk: Desk, request: Request, target: Target, lease: Lease) -> tuple[str | None, list[str]]:
    """Alias, deployment, probe.

    Returns:
        The endpoint, and what was checked at it.
    """
    version, served = request.version, _served(desk, request.version)
    lease.check()
    desk.on_step("alias", f"champion of {desk.name} is {version.version}")
    set_champion(desk.client, desk.name, version.version)
    lease.check()
    desk.on_step("deploy", request.serving.in_words())
    target.deploy(served)
    desk.on_step("wait", "until it is ready")
    url = target.wait(served)
    if url is None:
        return None, ["not probed: the target has no endpoint to ask"]
    desk.on_step("probe", url)
    return url, [_probe(desk, version, served, url, request.max_flips)]


def _probe(desk: Desk, version: RegisteredVersion, served: Served, url: str, max_flips: float) -> str:
    """Ask the endpoint the evaluation's prompts.

    Raises:
        GateFailedError: too many replies are not the recorded ones.
    """
    from components.contract import build_contract
    from components.contract.config import ContractConfig
    from pipeline.promoting.probe import choose_samples, probe

    evaluation = read_stored_evaluation(version.evaluation, desk.store)
    config = run_config(desk.client, version)
    contract = build_contract(ContractConfig.model_validate(config["contract"]))
    if contract.hash != evaluation.settings["contract_hash"]:
        raise PipelineError(
            f"{version} was evaluated with another contract than its run's config says (or another version of this "
            f"package reads it otherwise): what is recorded cannot be compared with; run it again"
        )
    samples = choose_samples(evaluation.samples)
    result = probe(
        url,
        served.model,
        samples,
        contract,
        max_tokens=int(evaluation.settings["sampling"]["greedy"]["max_new_tokens"]),
        bare=bool(config.get("merge", {}).get("default_system_prompt", True)),
    )
    if not result.passed(max_flips):
        raise GateFailedError(
            f"{result.in_words()}; at most {max_flips:.0%} may. What answers at {url} is not what was evaluated "
            f"(first: {result.flips[0]})"
        )
    return f"pass: {result.in_words()}"


def _finish(desk: Desk, journal: Journal, log: PromotionLog) -> None:
    """Log, tags, end of the journal. Done again it changes nothing."""
    entry = journal.entry
    desk.on_step(
        "log", f"{entry.action} {desk.name}/{entry.version}" + (f", forced: {entry.forced}" if entry.forced else "")
    )
    log.append(entry)
    tags = {
        "promotion.action": entry.action,
        "promotion.at": entry.at,
        "promotion.by": entry.by,
        "promotion.reason": entry.reason,
        "promotion.forced": entry.forced,
        "promotion.previous": entry.previous or "",
        "promotion.target": entry.target,
    }
    with mlflow_errors():
        for tag, value in tags.items():
            desk.client.set_model_version_tag(desk.name, entry.version, tag, value)
    log.end()


def _undo_after(desk: Desk, journal: Journal, log: PromotionLog, error: BaseException) -> None:
    """Put everything back, keeping the error that is the reason."""
    try:
        _undo(desk, journal, log, why=str(error) or type(error).__name__)
    except PipelineError as second:
        raise PipelineError(
            f"{error or type(error).__name__}; and putting everything back failed too: {second}. The next "
            f"grpo promote, rollback or history of {desk.name} tries again"
        ) from error


def _undo(desk: Desk, journal: Journal, log: PromotionLog, why: str) -> None:
    """Alias and target as they were; an entry in the log; end of the journal. Done again it changes nothing."""
    entry = journal.entry
    target = open_target(ServingConfig.model_validate(entry.serving), Path(journal.home))
    back_to = f"{desk.name}/{entry.previous}" if entry.previous else "no champion"
    desk.on_step("put back", back_to)
    if champion(desk.client, desk.name) != entry.previous:
        set_champion(desk.client, desk.name, entry.previous)
    trouble = ""
    try:
        if journal.restore is None:
            target.remove(desk.name)
        else:
            served = _served(desk, read_version(desk.client, desk.name, journal.restore))
            if not target.serves(served):
                target.deploy(served)
                target.wait(served)
    except PipelineError as error:
        # The alias is right again; a journal that stays would stop every further promotion.
        trouble = f"{desk.name}/{journal.restore} is champion again but not served ({error}); promote it to try again"
    log.append(replace(entry, action="undone", error="; ".join(filter(None, (why, trouble)))))
    log.end()
    if trouble:
        raise PipelineError(trouble)


def _settle_locked(desk: Desk) -> str | None:
    """As `settle`, the lock held."""
    log = desk.log
    journal = log.journal()
    if journal is None:
        return None
    entry = journal.entry
    told = f"a promotion of {desk.name}/{entry.version} by {entry.by} at {entry.at} was interrupted"
    here = journal.host == socket.gethostname()
    if entry.serving["target"] == "local" and not here:
        raise PipelineError(
            f"{told} on {journal.host}, which serves it from a process of its own; run `grpo history {desk.name}` there"
        )
    if journal.phase == "live":
        desk.on_step("repair", f"{told} after its probe had passed: finished")
        _finish(desk, journal, log)
        return f"{told} and is finished now"
    desk.on_step("repair", f"{told}: undone")
    _undo(desk, journal, log, why="interrupted")
    return f"{told} and is undone now"


def _served(desk: Desk, version: RegisteredVersion) -> Served:
    evaluation = read_stored_evaluation(version.evaluation, desk.store)
    return Served(desk.name, version.version, version.weights, str(evaluation.settings["dtype"]), desk.store)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
