"""The `rewards:` section: what it accepts, what it refuses and what it says then."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from components.errors import BadInputError
from components.rewards.config import PRESETS, RewardConfig, RewardsConfig, StoredCode
from components.rewards.definition import Aspect


def section(**entries):
    return RewardsConfig.model_validate(entries)


def weights(config):
    return {name: config.weight(name) for name in config.rewards()}


def refusal(entries):
    with pytest.raises(ValidationError) as caught:
        RewardsConfig.model_validate(entries)
    return caught.value.errors()[0]["msg"]


def test_an_empty_section_is_the_maths_preset():
    assert weights(RewardsConfig()) == {"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5}


def test_what_is_listed_is_what_is_used():
    assert weights(section(correctness=3.0)) == {"correctness": 3.0}


def test_listed_rewards_join_a_preset_that_is_named_and_change_its_weights():
    config = section(preset="maths", correctness=3, soft_format=None)
    assert weights(config) == {"correctness": 3.0, "strict_format": 1.0, "incremental_format": 0.5, "soft_format": 0.5}


def test_a_weight_alone_keeps_the_options_of_the_preset():
    config = section(preset="summarisation", length=0.4)
    assert config.rewards()["length"].options == PRESETS["summarisation"]["length"]["options"]
    assert config.weight("length") == 0.4


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_three_to_five_rewards_and_the_right_answer_outweighs_the_rest(preset):
    config = section(preset=preset)
    ordered = sorted(weights(config).values())
    assert 3 <= len(ordered) <= 5
    assert ordered[-1] >= sum(ordered[:-1])


def test_shorthands_are_a_weight_a_use_or_nothing():
    assert RewardConfig.model_validate(2) == RewardConfig(weight=2.0)
    assert RewardConfig.model_validate("./a.py:f") == RewardConfig(use="./a.py:f")
    assert RewardConfig.model_validate(None) == RewardConfig()


def test_a_section_read_back_from_json_is_the_same():
    config = section(
        preset="qa",
        brevity={"use": "/x/a.py:brevity", "weight": -0.2, "aspect": "length"},
        length={"options": {"ideal": 30}},
    )
    again = RewardsConfig.from_json(config.to_json())
    assert again == config
    assert again.rewards() == config.rewards()
    assert again.rewards()["brevity"].aspect is Aspect.LENGTH


def test_one_library_reward_may_be_used_twice_under_two_names():
    config = section(
        short={"use": "length", "options": {"maximum": 50}}, long={"use": "length", "options": {"minimum": 5}}
    )
    assert weights(config) == {"short": 0.2, "long": 0.2}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"corectness": 2.0}, "rewards.corectness: name 'corectness' is no reward of the library; did you mean"),
        ({"presett": "maths"}, "did you mean the setting 'preset'?"),
        ({"mine": {"use": "numerik"}}, "use 'numerik' is no reward of the library; did you mean 'numeric'?"),
        ({"mine": {"use": "mine.py"}}, "names a file without a function: mine.py:FUNCTION"),
        ({"mine": {"use": "no good:x y"}}, "neither path/to/file.py:function nor package.module:function"),
        ({"preset": "math"}, "preset 'math' is unknown: did you mean 'maths'?"),
        ({"preset": "none"}, "no reward is named"),
        ({"correctness": 0}, "every weight is 0"),
        ({"correctness": False}, "write weight: 0 to measure it only"),
        ({"correctness": float("nan")}, "finite number"),
        ({"my reward": 1.0}, "use letters, digits and _"),
        ({"Correctness": {"use": "correctness"}, "correctness": 2.0}, "two rewards with one name"),
        ({"schedule": 1.0}, "the name is reserved"),
        ({"length": 0.2}, "rewards.length.options: give at least one of minimum, maximum and ideal"),
        ({"length": {"options": {"idael": 3}}}, "rewards.length.options.idael: Extra inputs are not permitted; did"),
        ({"correctness": {"options": {"x": 1}}}, "correctness has no options"),
        ({"numeric": {"options": {"relative": 2}}}, "rewards.numeric.options.relative: Input should be less than 1"),
        ({"numeric": {"columns": {"gold": "answer"}}}, "numeric reads no 'gold' (it reads: answer)"),
        ({"length": {"options": {"minimum": 9, "maximum": 3}}}, "are not in order"),
        ({"json_schema": {"options": {"json_schema": {"type": "objekt"}}}}, "not a JSON Schema"),
        ({"citation": {"options": {"pattern": "["}}}, "is not a regular expression"),
        (["correctness"], "a mapping of names to weights"),
    ],
)
def test_what_a_person_mistypes_is_refused_with_the_mend(entries, said):
    assert said in refusal(entries)


def test_files_are_found_made_absolute_and_kept_apart_from_stored_ones(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completions, **kwargs): return [0.0] * len(completions)\n")
    config = section(correctness=2.0, mine="mine.py:f").resolved(tmp_path)
    assert config.code_files() == {"mine": tmp_path / "mine.py"}
    stored = StoredCode(reference="file:///s/rewards/x@sha256:" + "0" * 64, file="mine.py", sha256="0" * 64)
    submitted = config.with_rewards({"mine": config.rewards()["mine"].model_copy(update={"stored": stored})})
    assert submitted.code_files() == {}
    assert RewardsConfig.from_json(submitted.to_json()).rewards()["mine"].stored == stored


def test_a_reward_file_that_is_not_there_is_refused_by_its_full_path(tmp_path):
    with pytest.raises(BadInputError, match=r"rewards\.mine\.use: .*/gone\.py does not exist"):
        section(mine="gone.py:f").resolved(tmp_path)


def test_one_reward_can_be_looked_at_alone():
    config = section(preset="qa").only(["fuzzy_match"])
    assert weights(config) == {"fuzzy_match": 0.5}
    with pytest.raises(BadInputError, match="did you mean 'fuzzy_match'"):
        config.only(["fuzzy_mach"])


def test_a_reward_of_weight_0_can_be_looked_at_alone():
    config = section(correctness=2.0, strict_format=0.0)
    assert weights(config.only(["strict_format"])) == {"strict_format": 1.0}
    assert weights(config.only(["correctness", "strict_format"])) == {"correctness": 2.0, "strict_format": 0.0}


def test_checking_a_section_imports_nothing_heavy():
    code = (
        "import sys\nfrom components.rewards.config import RewardsConfig\n"
        "RewardsConfig.model_validate({'preset': 'code', 'latex_accuracy': 1, 'fuzzy_match': 1})\n"
        "heavy = {'torch', 'transformers', 'trl', 'math_verify', 'sympy', 'rapidfuzz', 'jsonschema', 'boto3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
