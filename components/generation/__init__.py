"""One way to generate batches of completions, whatever the engine; light to import (no torch, no vLLM)."""

from components.generation.interface import (
    Completion,
    EngineIdentity,
    Generator,
    Sampling,
    generation_defaults,
    identify,
    open_generator,
)

__all__ = ["Completion", "EngineIdentity", "Generator", "Sampling", "generation_defaults", "identify", "open_generator"]
