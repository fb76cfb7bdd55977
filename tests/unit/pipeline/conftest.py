"""What the tests of the pipeline share."""

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True, scope="session")
def quick_callers_in_kfp():
    """KFP names the caller in each resource setter by `inspect.stack()`, which reads source files for every frame.

    Under a test runner the stack is deep and the modules are many: seconds a setter. Only the name is used.
    """
    from kfp.dsl import pipeline_task

    original = pipeline_task.inspect

    def stack():
        frame, names = sys._getframe(1), []
        while frame is not None:
            names.append((frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return names

    pipeline_task.inspect = SimpleNamespace(
        **{name: getattr(original, name) for name in dir(original) if not name.startswith("__")} | {"stack": stack}
    )
    yield
    pipeline_task.inspect = original
