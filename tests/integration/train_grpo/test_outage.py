"""The store goes away in the middle of a training: it goes on, and the uploads catch up."""

import time

import pytest
from servers import SeaweedServer

pytestmark = pytest.mark.slow

OUTAGE_SECONDS = 20


@pytest.fixture
def server(tmp_path, monkeypatch):
    folder = tmp_path / "s3"
    folder.mkdir()
    server = SeaweedServer(folder)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()


@pytest.mark.timeout(400)
def test_a_store_that_is_down_for_a_while_delays_the_upload_and_not_the_training(make, server):
    training = make("outage", store="s3://artifacts/grpo", max_steps=90, save_steps=5, validation_rows=0, keep="last")
    process = training.start(GRPO_CACHE=str(training.folder / "cache"))
    assert training.wait_for_step(process, 7), training.log()[-3000:]
    server.kill()
    at, since = training.steps_done(), time.monotonic()
    while time.monotonic() - since < OUTAGE_SECONDS:
        time.sleep(0.5)
    assert process.poll() is None, training.log()[-3000:]
    assert training.steps_done() > at + 5
    server.start()
    process.communicate(timeout=300)
    assert process.returncode == 0, training.log()[-3000:]
    keys = training.store.keys("training")
    assert any(key.endswith("/checkpoint-90") for key in keys)
    assert any(key.endswith("/adapter") for key in keys)
