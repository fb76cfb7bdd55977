"""The images as written: pins that agree with each other, and a compose file that gives away nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "docker" / "constraints"
FAMILIES = ("data", "train", "merge", "evaluate", "registry")
FLAVOURS = ("cpu", "cuda")


def pins(name, flavour):
    lines = (CONSTRAINTS / f"{name}-{flavour}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def local_pins():
    return dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cpu_images_compute_with_the_versions_of_the_local_environment(family):
    local = local_pins()
    found = pins(family, "cpu")
    assert {name: version for name, version in found.items() if local.get(name, version) != version} == {}
    assert set(found) - set(local) == set()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("layer", "families"),
    [
        ("core", FAMILIES),
        ("data", ("model",)),
        ("model", ("merge", "evaluate", "train")),
        ("evaluate", ("train",)),
    ],
)
def test_a_layer_holds_what_the_images_on_it_pin_so_that_they_only_add(layer, families, flavour):
    for family in families:
        assert pins(layer, flavour).items() <= pins(family, flavour).items(), family


@pytest.mark.parametrize("family", ["train", "evaluate"])
def test_the_cuda_pins_name_vllm_within_the_range_trl_supports_with_the_same_torch_and_transformers(family):
    cuda, cpu = pins(family, "cuda"), pins(family, "cpu")
    assert 22 <= int(cuda["vllm"].split(".")[1]) <= 31
    for name in ("torch", "transformers", "accelerate", "kfp"):
        assert cuda[name] == cpu[name]
    assert any(name.startswith("nvidia-") for name in cuda)
    assert not any(name.startswith("nvidia-") for name in cpu)


def test_images_without_a_model_have_no_torch():
    for family in ("data", "registry"):
        for flavour in FLAVOURS:
            assert not {"torch", "vllm", "triton"} & set(pins(family, flavour))


def test_hadolint_and_shellcheck_find_nothing():
    programs = [Path(sys.executable).with_name(name) for name in ("hadolint", "shellcheck")]
    if not all(program.exists() for program in programs):
        pytest.skip("hadolint and shellcheck are not installed")
    scripts = sorted((ROOT / "docker").glob("*.sh"))
    for program, files in zip(programs, ([ROOT / "docker" / "Dockerfile"], scripts), strict=True):
        done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_every_service_of_the_compose_file_is_hardened_pinned_and_on_loopback_only():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    assert set(services) == {"store", "database", "mlflow"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.search(r":[\d.]+(-\w+)?\}?$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        # The mlflow image brings its user and its health check.
        assert name == "mlflow" or (service["user"] != "0:0" and service["healthcheck"]), name


def test_no_credential_is_written_in_the_compose_file():
    text = (ROOT / "docker" / "compose.yaml").read_text()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "POSTGRES_PASSWORD"):
        assert re.search(rf"{name}: \$\{{{name}:\?", text)


def test_the_step_images_and_the_configs_defaults_have_the_same_names():
    from pipeline.resources import ImagesConfig

    named = ImagesConfig().model_dump()
    for family in FAMILIES:
        assert re.fullmatch(rf"registry\.example\.com/grpo/{family}:[\d.]+", named[family])
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert named["train"].endswith(f":{version}")


def test_the_code_label_and_the_runner_hash_the_same_code_alike(tmp_path):
    from pipeline.docker_runner import code_hash

    script = (ROOT / "docker" / "build.sh").read_text()
    line = re.search(r"^CODE=\$\((.*?)\)$", script, re.MULTILINE | re.DOTALL)[1]
    folder = tmp_path / "components"
    (folder / "b_c").mkdir(parents=True)
    (folder / "b").mkdir()
    for name in ("a.py", "b/z.py", "b_c/y.json", "b/x.md", "Z.j2"):
        (folder / name).write_text(name)
    shell = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shell.stdout.strip() == code_hash(folder)
    (folder / "a.py").write_text("changed")
    assert shell.stdout.strip() != code_hash(folder)
