"""Waivers: what they cover, and that none outlives its cause unseen."""

import pytest
from pydantic import ValidationError

from components.smoke_test_rewards.config import SmokeTestConfig, Waiver
from components.smoke_test_rewards.findings import Finding, apply_waivers


def test_a_waived_failure_no_longer_stops_and_carries_the_reason():
    findings = [Finding("total/shotgun", "failure", "paid"), Finding("total/empty", "failure", "paid")]
    marked = apply_waivers(findings, [Waiver(name="total/shotgun", reason="answers are lists here")])
    assert [(finding.name, finding.stops, finding.waived) for finding in marked] == [
        ("total/shotgun", False, "answers are lists here"),
        ("total/empty", True, None),
    ]


def test_a_star_matches_any_part_of_a_name():
    marked = apply_waivers([Finding("total/shotgun", "failure", "paid")], [Waiver(name="total/*", reason="stage one")])
    assert not marked[0].stops


def test_a_waiver_that_fits_nothing_is_reported():
    marked = apply_waivers([], [Waiver(name="total/gone", reason="was needed once")])
    assert [(finding.name, finding.level) for finding in marked] == [("waiver/total/gone", "warning")]


def test_a_waiver_needs_a_reason():
    with pytest.raises(ValidationError, match="reason"):
        SmokeTestConfig.model_validate({"waive": [{"name": "total/shotgun", "reason": ""}]})
