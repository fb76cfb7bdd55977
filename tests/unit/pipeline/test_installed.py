"""A missing extra is a sentence with the mend, not a traceback."""

import pytest

from components.errors import BadInputError
from pipeline import installed
from pipeline.installed import explain_missing, packages_of, require_extra


def test_an_extra_holds_the_packages_of_the_extras_within_it():
    assert {"kfp", "datasets", "torch", "trl", "mlflow", "scipy"} <= set(packages_of("local"))
    assert "torch" not in packages_of("data")
    assert packages_of("no-such-extra") == []


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    assert "grpo-pipeline[compile]" in explain_missing(ModuleNotFoundError("no kfp", name="kfp"))
    assert "grpo-pipeline[data]" in explain_missing(ModuleNotFoundError("no", name="math_verify.parser"))
    assert "grpo-pipeline[local]" in explain_missing(ModuleNotFoundError("no", name="numpy"))


def test_a_missing_module_of_our_own_is_a_fault_and_stays_a_traceback():
    assert explain_missing(ModuleNotFoundError("no", name="components.nowhere")) is None


def test_what_cannot_end_well_is_refused_before_it_begins(monkeypatch):
    require_extra("compile", "`grpo compile`")
    monkeypatch.setattr(installed, "packages_of", lambda extra: ["kfp", "surely-not-installed"])
    with pytest.raises(BadInputError, match=r"surely-not-installed.*grpo-pipeline\[local\]"):
        require_extra("local", "`grpo run`")
