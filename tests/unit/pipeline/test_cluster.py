"""`grpo submit`, `status`, `logs` against a double of the few REST calls of KFP they make.

The double keeps pipelines, versions, experiments and runs, checks the credentials, and answers in the API's own JSON;
KFP's client is the real one. That a real KFP answers the same is not shown here.
"""

import json
import re
import shutil
import ssl
import subprocess
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from answering import answering
from typer.testing import CliRunner

from pipeline.cli import main
from pipeline.cluster import cluster as module
from pipeline.cluster.cluster import Cluster, Connection

RUN = "11111111-2222-3333-4444-555555555555"
IMAGES = ", ".join(
    f"{family}: registry.test/{family}:1" for family in ("data", "train", "merge", "evaluate", "registry")
)
CONFIG = (
    "run: {name: mine}\nmodel: {source: org/model}\ndata: {train: {hub: org/data}}\n"
    "store: {uri: 's3://artifacts/grpo'}\ntracking: {uri: 'http://mlflow.grpo.svc:5000', experiment: maths}\n"
    f"resources: {{service_account: grpo-runner, images: {{{IMAGES}}}}}\n"
)


class KfpDouble(ThreadingHTTPServer):
    """KFP's API, as far as it is used."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.token = None
        self.cookie = None
        self.pipelines, self.versions, self.experiments, self.runs, self.logs = [], [], [], {}, {}
        self.calls = []
        self.namespaces = set()
        self.states = []
        self.failing = 0

    def next_state(self, run):
        """Each look at a run takes the next of `states`."""
        if self.states:
            run.update(self.states.pop(0))
        return run


class _Handler(BaseHTTPRequestHandler):
    server: KfpDouble

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def _answer(self, method):
        server = self.server
        path, _, query = self.path.partition("?")
        given = dict(urllib.parse.parse_qsl(query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.calls.append((method, path))
        server.namespaces.add(given.get("namespace"))
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self._send(401, {"error_message": "who are you"})
        if server.cookie and self.headers.get("Cookie") != server.cookie:
            return self._send(403, {"error_message": "no session"})
        if server.failing:
            server.failing -= 1
            return self._send(503, {"error_message": "starting"})
        route = (method, path.removeprefix("/apis/v2beta1"))
        if route == ("GET", "/healthz"):
            return self._send(200, {"multi_user": False})
        if route == ("GET", "/pipelines"):
            return self._send(200, {"pipelines": _named(server.pipelines, given)})
        if route == ("POST", "/pipelines/upload"):
            return self._send(200, self._keep(server.pipelines, "pipeline_id", given, body))
        if route == ("POST", "/pipelines/upload_version"):
            entry = self._keep(server.versions, "pipeline_version_id", given, body)
            entry["pipeline_id"] = given["pipelineid"]
            return self._send(200, entry)
        if method == "GET" and path.endswith("/versions"):
            return self._send(200, {"pipeline_versions": _named(server.versions, given)})
        if route == ("GET", "/experiments"):
            return self._send(200, {"experiments": _named(server.experiments, given)})
        if route == ("POST", "/experiments"):
            entry = {**json.loads(body), "experiment_id": f"e{len(server.experiments)}"}
            server.experiments.append(entry)
            return self._send(200, entry)
        if route == ("POST", "/runs"):
            run = {**json.loads(body), "run_id": RUN, "state": "PENDING"}
            server.runs[RUN] = run
            return self._send(200, run)
        if route == ("GET", "/runs"):
            return self._send(200, {"runs": _named(list(server.runs.values()), given)})
        found = re.fullmatch(r"/runs/([^/:]+)(:terminate)?", route[1])
        if found and found[1] in server.runs:
            if found[2]:
                server.runs[found[1]]["state"] = "CANCELING"
                return self._send(200, {})
            return self._send(200, server.next_state(server.runs[found[1]]))
        log = re.fullmatch(r"/apis/v1alpha1/runs/([^/]+)/nodes/([^/]+)/log", path)
        if log and log[2] in server.logs:
            return self._send(200, server.logs[log[2]])
        return self._send(404, {"error_message": f"{path} not found"})

    def _keep(self, kept, key, given, body):
        document = body[body.index(b"\r\n\r\n") + 4 :].rsplit(b"\r\n--", 1)[0]
        entry = {key: f"{key}-{len(kept)}", "display_name": given["name"], "package": document.decode()}
        kept.append(entry)
        return {name: value for name, value in entry.items() if name != "package"}

    def _send(self, status, answer):
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _named(entries, given):
    predicates = json.loads(given.get("filter") or "{}").get("predicates", [])
    names = [entry.get("stringValue") or entry.get("string_value") for entry in predicates]
    found = [entry for entry in entries if not names or entry["display_name"] in names]
    return [{name: value for name, value in entry.items() if name != "package"} for entry in found]


@pytest.fixture
def kfp(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KFP_HOST", "KFP_TOKEN", "KFP_COOKIE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(Cluster.wait, "__kwdefaults__", {"poll_s": 0.01})
    with answering(KfpDouble()) as server:
        yield server


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path / "run.yaml"


def grpo(capfd, *arguments):
    """Exit code, output and error of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return ended.value.code or 0, out, err


def task(name, state, pod=None, children=(), **more):
    return {
        "run_id": RUN,
        "task_id": f"id-{pod or name}",
        "display_name": name,
        "state": state,
        "pod_name": pod or f"mine-{name}",
        "create_time": "2026-01-01T00:00:00Z",
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:01:00Z",
        "child_tasks": [{"pod_name": child} for child in children],
        **more,
    }


def failed_run(message="exit status 3"):
    return {
        "run_id": RUN,
        "display_name": "mine",
        "state": "FAILED",
        "run_details": {
            "task_details": [
                task("smoke-test-rewards", "FAILED", children=["mine-exec"], error={"code": 2, "message": message}),
                task("executor", "FAILED", pod="mine-exec", children=["mine-exec-0", "mine-exec-1"]),
                task("executor(0)", "FAILED", pod="mine-exec-0"),
                task("executor(1)", "FAILED", pod="mine-exec-1", create_time="2026-01-01T00:02:00Z"),
                task("smoke-test-rewards-driver", "SUCCEEDED", children=["mine-smoke-test-rewards"]),
                task("import-model", "SUCCEEDED"),
            ]
        },
    }


def test_a_run_is_started_with_its_config_version_experiment_and_service_account(kfp, config, capfd):
    code, out, _ = grpo(capfd, "submit", config, "--host", kfp.url)
    assert code == 0
    assert f"link  {kfp.url}/#/runs/details/{RUN}" in out
    run = kfp.runs[RUN]
    assert (run["display_name"], run["service_account"]) == ("mine", "grpo-runner")
    assert run["runtime_config"]["parameters"]["config"]["model"]["source"] == "org/model"
    assert kfp.experiments[0]["display_name"] == "maths"
    version = kfp.versions[0]
    assert version["display_name"].startswith("mine-")
    assert run["pipeline_version_reference"]["pipeline_version_id"] == version["pipeline_version_id"]
    documents = list(yaml.safe_load_all(version["package"]))
    assert "check-prerequisites" in documents[0]["root"]["dag"]["tasks"]
    assert "kubernetes" in documents[1]["platforms"]


def test_the_same_pipeline_is_not_uploaded_twice_and_a_changed_one_is(kfp, config, capfd):
    for _ in range(2):
        grpo(capfd, "submit", config, "--host", kfp.url)
    assert (len(kfp.pipelines), len(kfp.versions)) == (1, 1)
    grpo(capfd, "submit", config, "--host", kfp.url, "--set", "resources.merge_lora.memory=64Gi")
    assert (len(kfp.pipelines), len(kfp.versions), len(kfp.experiments)) == (1, 2, 1)


def test_a_namespace_is_named_only_where_kfp_has_several(kfp, config, capfd):
    grpo(capfd, "submit", config, "--host", kfp.url)
    assert kfp.namespaces == {None}
    grpo(capfd, "submit", config, "--host", kfp.url, "--namespace", "team-a", "--experiment", "other")
    assert "team-a" in kfp.namespaces
    assert kfp.experiments[1]["namespace"] == "team-a"


def test_waiting_tells_each_change_once_and_ends_with_the_outcome(kfp, config, capfd):
    running = {"state": "RUNNING", "run_details": {"task_details": [task("train-grpo", "RUNNING")]}}
    done = {"state": "SUCCEEDED", "run_details": {"task_details": [task("train-grpo", "SUCCEEDED")]}}
    kfp.states = [{}, running, running, done]
    code, out, _ = grpo(capfd, "submit", config, "--host", kfp.url, "--wait")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if "train_grpo" in line]
    assert [line[2] for line in lines] == ["running", "succeeded"]


def test_waiting_bears_an_api_that_is_away_for_a_while(kfp, config, capfd):
    kfp.runs[RUN] = {"run_id": RUN, "display_name": "mine", "state": "RUNNING"}
    cluster = Cluster(Connection(kfp.url))
    kfp.failing = 3
    kfp.states = [{"state": "SUCCEEDED"}]
    assert cluster.wait(RUN, on_change=lambda step: None, poll_s=0.01).state == "SUCCEEDED"


def test_a_failed_run_gives_the_failed_steps_own_exit_code_and_words(kfp, capfd):
    kfp.runs[RUN] = failed_run()
    event = {"time": 1.0, "step": "smoke_test_rewards", "event": "failed", "exit_code": 3, "message": "a trap is paid"}
    kfp.logs["mine-exec-1"] = f"starting\n2026-01-01 INFO grpo: {json.dumps(event)}\n"
    code, _, err = grpo(capfd, "status", RUN, "--host", kfp.url)
    assert (code, err.strip()) == (3, "failed: smoke test rewards: a trap is paid")


def test_a_failed_run_without_a_log_is_an_error_with_kfps_message(kfp, capfd, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    kfp.runs[RUN] = failed_run("OOMKilled")
    code, out, err = grpo(capfd, "status", "mine", "--host", kfp.url)
    assert (code, err.strip()) == (1, "failed: smoke test rewards: OOMKilled")
    assert re.search(r"✗ smoke_test_rewards +failed +60 s", out)


def test_logs_are_those_of_the_last_try(kfp, capfd):
    kfp.runs[RUN] = failed_run()
    kfp.logs = {"mine-exec-0": "first try\n", "mine-exec-1": "second try\n"}
    assert grpo(capfd, "logs", RUN, "smoke_test_rewards", "--host", kfp.url)[:2] == (0, "second try\n")


def test_a_log_that_kfp_has_not_names_the_command_that_may_have_it(kfp, capfd, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    kfp.runs[RUN] = failed_run()
    code, _, err = grpo(capfd, "logs", RUN, "smoke_test_rewards", "--host", kfp.url)
    assert code == 1
    assert f"kubectl logs -n kubeflow -l pipeline/runid={RUN},grpo-pipeline/step=smoke_test_rewards" in err


def test_a_run_is_stopped_and_its_end_is_resumable(kfp, capfd):
    kfp.runs[RUN] = {"run_id": RUN, "display_name": "mine", "state": "RUNNING"}
    assert grpo(capfd, "submit", "--cancel", "mine", "--host", kfp.url)[0] == 0
    assert kfp.runs[RUN]["state"] == "CANCELING"
    kfp.runs[RUN]["state"] = "CANCELED"
    assert grpo(capfd, "status", RUN, "--host", kfp.url)[0] == 4


def test_token_and_cookie_come_from_files_or_the_environment(kfp, capfd, tmp_path, monkeypatch):
    kfp.runs[RUN] = {"run_id": RUN, "display_name": "mine", "state": "RUNNING"}
    kfp.token, kfp.cookie = "t0ken", "authservice_session=abc"
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setenv("KFP_COOKIE", "authservice_session=abc")
    assert grpo(capfd, "status", RUN, "--host", kfp.url, "--token-file", tmp_path / "token")[0] == 0
    code, _, err = grpo(capfd, "status", RUN, "--host", kfp.url)
    assert code == 2
    assert "--token-file" in err


def test_a_service_accounts_token_is_read_from_the_pods_volume(kfp, capfd, tmp_path, monkeypatch):
    kfp.runs[RUN] = {"run_id": RUN, "display_name": "mine", "state": "RUNNING"}
    kfp.token = "projected"
    (tmp_path / "token").write_text("projected")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    assert grpo(capfd, "status", RUN, "--host", kfp.url, "--service-account")[0] == 0
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "none"))
    code, _, err = grpo(capfd, "status", RUN, "--host", kfp.url, "--service-account")
    assert code == 2
    assert "projected token" in err


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (("status", RUN), "--host is missing"),
        (("status", RUN, "--host", "kfp.example.com"), "no URL"),
        (("status", RUN, "--host", "http://127.0.0.1:9"), "does not answer"),
        (
            ("status", RUN, "--host", "http://127.0.0.1:9", "--ca-cert", "/nonexistent"),
            "name a file of CA certificates",
        ),
        (("submit", "--host", "http://127.0.0.1:9"), "either a CONFIG"),
        (("logs", RUN, "trian", "--host", "{url}"), "write one of"),
        (("status", "nobody", "--host", "{url}"), "no run is named 'nobody'"),
        (("status", RUN, "--host", "{url}"), "knows no such thing"),
    ],
)
def test_what_cannot_be_is_refused_with_the_mend(kfp, capfd, arguments, mend):
    code, _, err = grpo(capfd, *(argument.replace("{url}", kfp.url) for argument in arguments))
    assert code == 2
    assert mend in err
    assert "Traceback" not in err


def test_the_images_of_the_defaults_start_no_pod(kfp, config, capfd):
    config.write_text(re.sub(r"resources: .*\n", "", CONFIG))
    code, _, err = grpo(capfd, "submit", config, "--host", kfp.url)
    assert code == 2
    assert "resources.images.data" in err
    assert not kfp.calls


def test_a_login_page_is_told_from_the_api(kfp, capfd, monkeypatch):
    monkeypatch.setattr(_Handler, "_answer", lambda self, method: self._send(200, "<html>log in</html>"))
    code, _, err = grpo(capfd, "status", RUN, "--host", kfp.url)
    assert code == 2
    assert "login page" in err


@pytest.fixture
def tls(kfp, tmp_path):
    """The double behind TLS, with a certificate of its own making."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "ca.crt", tmp_path / "ca.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-out", certificate, "-keyout", key]
    subprocess.run([*map(str, made), *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = KfpDouble()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.runs[RUN] = {"run_id": RUN, "display_name": "mine", "state": "RUNNING"}
    with answering(server):
        yield f"https://localhost:{server.server_port}", certificate


def test_a_host_with_a_ca_of_its_own_needs_it_named(tls, capfd):
    url, certificate = tls
    code, _, err = grpo(capfd, "status", RUN, "--host", url)
    assert code == 2
    assert "--ca-cert" in err
    assert grpo(capfd, "status", RUN, "--host", url, "--ca-cert", certificate)[0] == 0
    code, _, err = grpo(capfd, "status", RUN, "--host", url, "--insecure")
    assert code == 0
    assert "not checked" in err


def test_credentials_are_in_no_text_of_a_connection():
    assert "t0ken" not in repr(Connection("http://kfp", token="t0ken", cookie="t0ken"))


def test_help_names_no_option_that_takes_a_credential():
    from pipeline.cli import app

    shown = CliRunner().invoke(app, ["submit", "--help"], env={"COLUMNS": "200"}).stdout
    assert "--token-file" in shown
    assert "--token " not in shown
