"""Checkpoints: the newest few and the best stay, and what could not be stored is stored later."""

import pytest

from components.errors import PipelineError
from components.storage.store import open_store
from components.train_grpo.checkpoints import CheckpointUploader, newest_checkpoint, step_of


class Flaky:
    """A store that refuses to write while it is `down`."""

    def __init__(self, store):
        self._store, self.down = store, False

    def put(self, *arguments, **options):
        if self.down:
            raise PipelineError("the store does not answer")
        return self._store.put(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path):
    return Flaky(open_store(str(tmp_path / "store")))


@pytest.fixture
def uploader(store):
    return CheckpointUploader(store, "training/x/checkpoints", keep=2, provenance={})


@pytest.fixture
def save(tmp_path, uploader):
    def checkpoint(step):
        folder = tmp_path / "local" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text(str(step))
        uploader.submit(folder)
        for future in uploader._pending:
            future.result()

    return checkpoint


def stored(store):
    return sorted(step_of(key) for key in store.keys("training/x/checkpoints"))


def local(tmp_path):
    return sorted(step_of(path.name) for path in (tmp_path / "local").iterdir())


def test_the_newest_two_stay_here_and_in_the_store(store, save, tmp_path):
    for step in (2, 4, 6, 8):
        save(step)
    assert stored(store) == [6, 8]
    assert local(tmp_path) == [6, 8]


def test_the_best_stays_however_old_until_another_is_best(store, save, uploader):
    uploader.protect(2)
    for step in (2, 4, 6, 8):
        save(step)
    assert stored(store) == [2, 6, 8]
    uploader.protect(8)
    save(10)
    assert stored(store) == [8, 10]


def test_uploads_catch_up_after_an_outage_the_best_among_them(store, save, uploader):
    save(2)
    store.down = True
    uploader.protect(4)
    for step in (4, 6, 8):
        save(step)
    assert stored(store) == [2]
    store.down = False
    save(10)
    assert stored(store) == [4, 8, 10]


def test_what_was_missed_is_stored_at_the_end(store, save, uploader):
    store.down = True
    save(2)
    store.down = False
    uploader.wait()
    assert stored(store) == [2]


def test_an_end_without_the_store_is_an_error(store, save, uploader):
    store.down = True
    save(2)
    with pytest.raises(PipelineError, match="does not answer"):
        uploader.wait()


def test_the_newest_complete_checkpoint_is_taken_up(store, save, tmp_path):
    for step in (2, 10):
        save(step)
    found = newest_checkpoint(store, "training/x/checkpoints", tmp_path / "cache")
    assert (found.step, (found.directory / "weights").read_text()) == (10, "10")
