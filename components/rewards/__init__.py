"""The reward library, a person's own rewards, and their guarded execution; see docs/rewards.md.

`build_rewards` gives bare functions in TRL's signature; `components.rewards.guard.RewardGuard` runs the same rewards in
a worker process of their own. Importing this package imports neither.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.rewards.build import Reward, build_rewards, library_reward

__all__ = ["Reward", "build_rewards", "library_reward"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from components.rewards import build

        return getattr(build, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
