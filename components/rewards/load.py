"""Loading a person's own reward: `path/to/file.py:function` or `package.module:function`, by reference.

Called by `build.py`, in the guard's worker or in a bare trainer. A stored file is fetched (verified by its manifest)
and its hash compared with the one recorded at submission. A file stands alone: it may import what is installed where
the step runs, not files beside it. Loading runs the file's top level.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from components.rewards.config import FILE_USE, MODULE_USE, RewardConfig, file_sha256, nearest


def load_own(name: str, reward: RewardConfig) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable behind a person's own reward, and the options to call it with.

    A class is instantiated with the options, and its instance is called for each batch (and may keep state through
    `state_dict` and `load_state_dict`); a function gets the options as keyword arguments at each call.

    Args:
        name: the reward's name, for messages.
        reward: its config; `use` names a file or module.

    Returns:
        A callable in TRL's signature, and the keyword arguments to add to each call (none for a class).

    Raises:
        BadInputError: when file, module or function is missing, its import raises, or the options do not fit.
    """
    target = _named(name, reward)
    if inspect.isclass(target):
        try:
            target = target(**reward.options)
        except Exception as error:
            raise BadInputError(f"rewards.{name}: {reward.use} could not be made: {_last(error)}") from error
        if not callable(target):
            raise BadInputError(f"rewards.{name}: {reward.use} is a class without __call__(prompts, completions, ...)")
        return target, {}
    if not callable(target):
        raise BadInputError(f"rewards.{name}: {reward.use} is {type(target).__name__}, not a function")
    try:
        inspect.signature(target)
    except ValueError as error:
        raise BadInputError(f"rewards.{name}: {reward.use} does not say its parameters; wrap it in a def") from error
    if reward.options:
        _check_options(name, target, reward.options)
    return target, reward.options


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """What a reward function asks for by name.

    Args:
        function: a callable in TRL's signature.

    Returns:
        Parameters without a default, parameters with one, and whether it takes any keyword. Without what the trainer
        passes besides columns, but for `completion_ids`, which the smoke test and evaluation pass as a column.
    """
    required, optional, anything = [], [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            anything = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL or (
            parameter.name in TRAINER_ARGUMENTS and parameter.name != "completion_ids"
        ):
            continue
        elif parameter.default is inspect.Parameter.empty and parameter.name != "completion_ids":
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    return tuple(required), tuple(optional), anything


TRAINER_ARGUMENTS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
"""What TRL passes beside dataset columns (GRPOTrainer._calculate_rewards)."""


def _named(name: str, reward: RewardConfig) -> Any:
    use = str(reward.use)
    match = FILE_USE.fullmatch(use)
    if match:
        module = _import_file(name, reward, Path(match["path"]))
        function = match["function"]
    else:
        parts = MODULE_USE.fullmatch(use)
        if parts is None:
            raise BadInputError(f"rewards.{name}.use: {use!r} is neither path/to/file.py:function nor module:function")
        function = parts["function"]
        module = _run(name, use, lambda: importlib.import_module(parts["module"]))
    if not hasattr(module, function):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BadInputError(f"rewards.{name}.use: {use} has no {function!r}; {nearest(function, own or ['(nothing)'])}")
    return getattr(module, function)


def _import_file(name: str, reward: RewardConfig, path: Path) -> Any:
    if reward.stored is not None:
        from components.storage.store import fetch

        path = fetch(reward.stored.reference) / reward.stored.file
    if not path.is_file():
        raise BadInputError(f"rewards.{name}.use: {path} does not exist")
    digest = file_sha256(path)
    if reward.stored is not None and digest != reward.stored.sha256:
        raise BadInputError(
            f"rewards.{name}: {path} is not the file that was submitted (sha256 {digest[:12]}, recorded "
            f"{reward.stored.sha256[:12]}); submit the run again"
        )
    module_name = f"grpo_reward_{path.stem}_{digest[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise BadInputError(f"rewards.{name}.use: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    loader = spec.loader
    try:
        _run(name, str(path), lambda: loader.exec_module(module))
    except BadInputError:
        del sys.modules[module_name]
        raise
    return module


def _run(name: str, source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise BadInputError(f"rewards.{name}: importing {source} failed: {_last(error)}") from error


def _check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    required, optional, anything = parameters(function)
    known = [*required, *optional]
    for option in options:
        if option not in known and not anything:
            raise BadInputError(
                f"rewards.{name}.options.{option}: the function has no such parameter; "
                f"{nearest(option, known or ['(none)'])}"
            )


def _last(error: BaseException) -> str:
    """The error and the line it came from, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
