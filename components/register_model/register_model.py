"""Writes the evaluation into the training's MLflow run, and registers the model when the verdict is pass.

Called by component.py. Idempotent: run again on the same results it changes nothing and finds the same version. On a
verdict that is not pass everything is recorded, nothing is registered and the run ends failed (unless the config says
that it should only be recorded).
"""

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.errors import GateFailedError
from components.register_model.holdout_use import count_holdout_uses
from components.register_model.inputs import RegistrationInputs
from components.register_model.model_card import CardFacts, put_card
from components.register_model.readings import Reading, read_results, versions_now
from components.register_model.reproduce import fetch_command, git_commit, reproduce_commands
from components.sections import content_hash
from components.steps import emit
from components.storage.store import ArtifactStore, default_cache, open_store
from components.tracking.prompts import register_system_prompt
from components.tracking.recorded import recorded_version
from components.tracking.registry import register_version
from components.tracking.runs import (
    connect,
    end_run,
    flatten,
    log_history,
    log_metrics,
    log_params,
    open_run,
    run_exists,
    set_tags,
)

log = logging.getLogger(__name__)

RECORDED_TAG = "grpo.recorded"
"""Tag with a hash of what was recorded: the same results are not written a second time."""

COMMIT_TAG = "grpo.git_commit"
"""Tag with the commit of the code; `-changed` behind it when files of it were edited."""

LATER_SECTIONS = ("model", "data")
"""Sections of the config that become parameters here; training wrote those that it reads. Evaluation and gates do
not: they may change for the same run, and MLflow keeps a parameter's first value. config.yaml and tags hold them."""


def register_model(inputs: RegistrationInputs, *, work: Path, page: Path) -> str:
    """Record the evaluation, write the report, register on pass.

    Args:
        inputs: what the earlier steps handed on.
        work: local scratch folder.
        page: where the report goes for the KFP UI.

    Returns:
        `name/version`, or an empty text when nothing was registered.

    Raises:
        GateFailedError: when the verdict is not pass and the config ends such runs.
    """
    store = open_store(inputs.store)
    reading = read_results(inputs, work)
    run_id, name = inputs.run_id, str(inputs.registry.name)
    recorded = content_hash(_run_tags(inputs, reading), inputs.config)
    known = recorded_version(
        inputs.tracking.uri, run_id=run_id, mark=(RECORDED_TAG, recorded), name=name, digest=inputs.merged.digest
    )
    if known is not None and _take_page(store, inputs, recorded, page):
        version = f"{name}/{known}"
        _emit_summary(inputs, reading, run_id, version, page)
        return version
    client = connect(inputs.tracking)
    if not run_exists(client, run_id):
        run_id = _restore_run(client, inputs, reading)
    # The commit of a training that is only recorded anew is the one it was first recorded with.
    present = client.get_run(run_id).data.tags
    commit = present.get(COMMIT_TAG) or git_commit()
    if present.get(RECORDED_TAG) != recorded or not _take_page(store, inputs, recorded, page):
        uses = count_holdout_uses(store, str(reading.verdict["holdout_fingerprint"]))
        _write_page(inputs, reading, run_id, page, commit=commit, uses=uses)
        gpus = int(inputs.config["resources"]["train_grpo"]["gpus"])
        log_metrics(client, run_id, reading.flat_metrics() | reading.cost(gpus), step=reading.steps)
        log_params(client, run_id, flatten({name: inputs.config[name] for name in LATER_SECTIONS}))
        _log_files(client, run_id, inputs, reading, page)
        made_with = {COMMIT_TAG: commit, "grpo.holdout_uses": str(uses)}
        set_tags(client, run_id, _run_tags(inputs, reading) | made_with | {RECORDED_TAG: recorded})
        _put_page(store, inputs, recorded, page)

    verdict = str(reading.verdict["verdict"])
    version = ""
    if verdict == "pass" or (verdict == "inconclusive" and inputs.registry.register_inconclusive):
        made_by = {"git.commit": commit} if commit else {}
        number = register_version(
            client,
            name,
            source=inputs.merged.uri,
            digest=inputs.merged.digest,
            run_id=run_id,
            tags=_version_tags(inputs, reading) | made_by | _publish(client, store, inputs, reading, run_id, name),
            description=_description(inputs, reading),
        )
        version = f"{name}/{number}"
    failed = not version and inputs.registry.fail_run_on_gate
    end_run(client, run_id, "FAILED" if failed else "FINISHED")
    _emit_summary(inputs, reading, run_id, version, page)
    if failed:
        raise GateFailedError(f"verdict {verdict}: " + "; ".join(reading.failed_gates()))
    return version


def _restore_run(client: Any, inputs: RegistrationInputs, reading: Reading) -> str:
    """Make the training's run anew from its record, where MLflow no longer has it (a wiped database)."""
    record = reading.training
    run = open_run(client, inputs.tracking, name=record["run_name"], key=record["key"])
    if not run.resumed:
        log.warning(
            "MLflow has no run %s: its parameters and metrics are written again as %s", inputs.run_id, run.run_id
        )
        log_params(client, run.run_id, flatten(record["settings"]))
        log_history(client, run.run_id, [{k: v for k, v in row.items() if k != "stage"} for row in record["history"]])
        log_metrics(client, run.run_id, record["validation"], step=reading.steps)
    return run.run_id


def _write_page(
    inputs: RegistrationInputs, reading: Reading, run_id: str, page: Path, *, commit: str, uses: int
) -> None:
    """The run's report."""
    from components.register_model.report import ReportInputs, write_report  # draws: heavy to import

    page.parent.mkdir(parents=True, exist_ok=True)
    versions = reading.training["versions"] | versions_now()
    folder = f"repeat-{run_id[:8]}"
    fetched = fetch_command(run_id, inputs.tracking.uri, inputs.tracking.experiment, folder)
    repeated = reproduce_commands(inputs.config, folder=folder, run_id=run_id, commit=commit, versions=versions)
    write_report(
        ReportInputs(
            run_name=str(inputs.config["run"]["name"]),
            config=inputs.config,
            training=reading.training["history"],
            base_metrics=reading.base.metrics,
            base_settings=reading.base.settings,
            base_samples=reading.base.samples,
            candidate_metrics=reading.candidate.metrics,
            candidate_settings=reading.candidate.settings,
            candidate_samples=reading.candidate.samples,
            verdict=reading.verdict,
            pairs=reading.pairs,
            smoke=reading.smoke,
            dataset=reading.dataset,
            versions=versions,
            links=_places(inputs, run_id, page),
            facts=reading.facts(inputs.config, commit),
            holdout_uses=uses,
            reproduce=[fetched, *repeated],
        ),
        page,
    )


def _log_files(client: Any, run_id: str, inputs: RegistrationInputs, reading: Reading, page: Path) -> None:
    """Config, report, verdict and samples as files and a table of the run; datasets through mlflow.data."""
    import pandas
    import yaml

    client.log_text(run_id, yaml.safe_dump(inputs.config, sort_keys=False), "config.yaml")
    client.log_text(run_id, page.read_text(encoding="utf-8"), "report.html")
    client.log_text(run_id, json.dumps(reading.verdict, indent=1), "verdict.json")
    table = pandas.DataFrame(reading.pairs)
    if len(table):
        # log_table appends; the file is written whole so that a second time changes nothing.
        client.log_text(run_id, table.to_json(orient="split", index=False), "evaluation_pairs.json")
    _log_datasets(client, run_id, inputs, reading)


def _log_datasets(client: Any, run_id: str, inputs: RegistrationInputs, reading: Reading) -> None:
    """Dataset and holdout as inputs of the run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    present = {item.dataset.digest for item in client.get_run(run_id).inputs.dataset_inputs}
    entries = []
    for context, reference in (("training", inputs.dataset), ("holdout", inputs.holdout)):
        digest = reference.digest[:36]  # MLflow's limit for a dataset digest
        if digest in present:
            continue
        dataset = Dataset(
            name=f"{inputs.config['run']['name']}-{context}",
            digest=digest,
            source_type="artifact-store",
            source=json.dumps({"uri": str(reference)}),
            profile=json.dumps(reading.counts(context)),
        )
        entries.append(DatasetInput(dataset, tags=[InputTag("mlflow.data.context", context)]))
    if entries:
        client.log_inputs(run_id, datasets=entries)


def _run_tags(inputs: RegistrationInputs, reading: Reading) -> dict[str, str]:
    return {
        "grpo.verdict": str(reading.verdict["verdict"]),
        "grpo.merged": str(inputs.merged),
        "grpo.base": str(inputs.base),
        "grpo.holdout": str(inputs.holdout),
        "grpo.base_evaluation": str(inputs.base_evaluation),
        "grpo.candidate_evaluation": str(inputs.candidate_evaluation),
        "grpo.verdict_artifact": str(inputs.verdict),
        "grpo.adapter": str(inputs.adapter),
        "grpo.dataset": str(inputs.dataset),
        "grpo.smoke_test": str(inputs.smoke_test),
        "grpo.holdout_fingerprint": str(reading.verdict["holdout_fingerprint"]),
    }


def _publish(
    client: Any, store: ArtifactStore, inputs: RegistrationInputs, reading: Reading, run_id: str, name: str
) -> dict[str, str]:
    """The model card beside the weights and in the run, the system prompt in the prompt registry.

    Returns:
        Tags of the version that name them.
    """
    contract = build_contract(ContractConfig.model_validate(inputs.config["contract"]))
    provenance = reading.base_provenance
    card, text = put_card(
        store,
        CardFacts(
            name=name,
            weights=inputs.merged,
            base_source=str(provenance.get("source", inputs.base.uri)),
            base_revision=str(provenance.get("revision") or ""),
            licence=str(provenance.get("licence") or ""),
            system_prompt=contract.system_prompt,
            rows=reading.rows,
            table=reading.table(),
            gates=reading.gate_sentences(),
            settings=reading.candidate.settings,
        ),
    )
    client.log_text(run_id, text, "README.md")
    tags = {"card.reference": str(card)}
    if contract.system_prompt:
        tags["prompt"] = register_system_prompt(
            client, name, contract.system_prompt, {"contract.hash": contract.hash, "run_id": run_id}
        )
    return tags


def _version_tags(inputs: RegistrationInputs, reading: Reading) -> dict[str, str]:
    settings = reading.candidate.settings
    provenance = reading.base_provenance
    return {
        "verdict": str(reading.verdict["verdict"]),
        "gates": "; ".join(reading.gate_sentences())[:5000],
        "weights.reference": str(inputs.merged),
        "adapter.reference": str(inputs.adapter),
        "evaluation.reference": str(inputs.candidate_evaluation),
        "evaluation.base_reference": str(inputs.base_evaluation),
        "evaluation.settings": json.dumps(settings, sort_keys=True)[:5000],
        "holdout.fingerprint": str(settings.get("holdout_fingerprint", inputs.holdout.digest)),
        "contract.hash": build_contract(ContractConfig.model_validate(inputs.config["contract"])).hash,
        "base.source": str(provenance.get("source", "")),
        "base.revision": str(provenance.get("revision", "")),
        "base.manifest_sha256": inputs.base.digest,
        "lora.r": str((inputs.config.get("lora") or {}).get("r", "")),
        "images": json.dumps(inputs.config["resources"]["images"], sort_keys=True),
    }


def _description(inputs: RegistrationInputs, reading: Reading) -> str:
    """What a person reads beside the version."""
    lines = [f"Verdict: {reading.verdict['verdict']}. " + " ".join(reading.gate_sentences())]
    for name, figures in reading.table().items():
        base, candidate = figures["base"], figures["candidate"]
        lines.append(
            f"{name}: {base['value']:.3f} [{base['low']:.3f}, {base['high']:.3f}] -> "
            f"{candidate['value']:.3f} [{candidate['low']:.3f}, {candidate['high']:.3f}]"
        )
    lines.append(
        f"Base: {reading.base_provenance.get('source', inputs.base)}. Serve: grpo serve {inputs.registry.name}"
    )
    return "\n\n".join(lines)


def _page_key(inputs: RegistrationInputs, recorded: str) -> str:
    """Where the report of these results is kept: by the verdict's digest and what was recorded with it."""
    return f"reports/{inputs.verdict.digest[:32]}/{recorded[:16]}"


def _take_page(store: ArtifactStore, inputs: RegistrationInputs, recorded: str, page: Path) -> bool:
    """Copy the report that was written when these results were recorded; False when the store has none."""
    reference = store.find(_page_key(inputs, recorded))
    if reference is None:
        return False
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(store.fetch(reference, default_cache()) / "report.html", page)
    return True


def _put_page(store: ArtifactStore, inputs: RegistrationInputs, recorded: str, page: Path) -> None:
    """Keep the report beside the other artifacts too."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(page, Path(folder) / "report.html")
        key = _page_key(inputs, recorded)
        if store.find(key) is None:
            store.put(Path(folder), key, provenance={"kind": "report", "verdict": str(inputs.verdict)})


def _places(inputs: RegistrationInputs, run_id: str, page: Path) -> dict[str, str]:
    return {
        "report": str(page),
        "run": f"{run_id} in {inputs.tracking.uri}",
        "model": inputs.merged.uri,
    }


def _emit_summary(inputs: RegistrationInputs, reading: Reading, run_id: str, version: str, page: Path) -> None:
    """What `grpo run` prints at the end."""
    summary = {
        "rows": reading.rows,
        "metrics": reading.table(),
        "verdict": reading.verdict["verdict"],
        "gates": reading.gate_sentences(),
        "version": version,
        "run_id": run_id,
        "places": _places(inputs, run_id, page),
        "tracking_uri": inputs.tracking.uri,
    }
    emit({"step": "register_model", "event": "summary", "summary": summary})
