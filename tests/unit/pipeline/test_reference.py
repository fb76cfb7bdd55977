"""The generated pages say what the code says."""

import json

from components.train_grpo.trl_fields import load_fields
from pipeline.reference import PAGE, SCHEMA, page_text, schema_text


def test_the_reference_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run `make docs`"


def test_the_schema_is_up_to_date():
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run `make docs`"


def test_the_schema_knows_every_training_field():
    properties = json.loads(schema_text())["$defs"]["TrainingConfig"]["properties"]
    assert set(load_fields()) <= set(properties)
