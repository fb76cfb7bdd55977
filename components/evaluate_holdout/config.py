"""The `evaluation` section: how base and candidate are generated with and measured on the holdout.

Read by the evaluate_holdout step. Imports pydantic only. Both models of a run are evaluated with this one section; the
judge refuses to compare evaluations made with different ones.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from components.errors import BadInputError
from components.sections import Section


class AlsoConfig(Section):
    """A further set of questions, reported beside the holdout and never gated: did it learn more than one prompt?"""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name in metrics and tables: `also/<name>/accuracy_strict`."""

    path: str | None = None
    """A .jsonl or .parquet file with columns `question` and `answer` (a plain gold answer): other data, or the
    holdout's questions in other words. A local path, or an s3:// or file:// artifact reference
    (`<uri>@sha256:<hex>`) whose one such file is taken. Null takes the holdout's own questions."""

    system_prompt: bool = True
    """Whether the contract's system prompt is given; false asks the bare question."""

    template: str = "{question}"
    """How the question is put to the model, for example "Please solve this: {question}"."""

    limit: Annotated[int, Field(ge=1)] | None = None
    """Rows at most, chosen as `evaluation.limit` chooses."""

    @field_validator("template")
    @classmethod
    def _has_question(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError(f"template is {value!r}; it needs {{question}} where the question goes")
        return value

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.path is None and self.system_prompt and self.template == "{question}":
            raise ValueError(
                f"also {self.name!r} is the holdout itself; give a path, system_prompt: false, or a template"
            )
        return self


class EvaluationConfig(Section):
    """How a model is evaluated on the holdout."""

    engine: Literal["auto", "transformers", "vllm"] = "auto"
    """What generates: `vllm` (GPU), `transformers` (CPU or GPU), or `auto`: vLLM where it is installed and a GPU is
    there."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and arithmetic; `auto` is bfloat16 on a GPU and float32 on a CPU."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; `auto` takes a GPU when there is one."""

    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Completions generated at once; null lets the engine choose by memory."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    """Most tokens of a completion; what is cut off there counts as truncated."""

    limit: Annotated[int, Field(ge=1)] | None = None
    """Rows of the holdout at most, the same rows every time (chosen by the hash of their id); null takes all."""

    samples: Annotated[int, Field(ge=0)] = 0
    """Completions sampled a row besides the greedy one; 2 or more give pass@k and majority@k. 0 samples none."""

    temperature: Annotated[float, Field(gt=0)] | None = None
    """Temperature of the samples; null takes the model's generation_config.json, as a server does, else 1."""

    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus of the samples; null takes the model's generation_config.json, else 1."""

    top_k: Annotated[int, Field(ge=0)] | None = None
    """Likeliest tokens kept for the samples (0: all); null takes the model's generation_config.json, else all."""

    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    """Repetition penalty of all decoding; null takes the model's generation_config.json, as a server does, else 1."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Of the samples and of the bootstrap."""

    slices: Annotated[str, Field(min_length=1)] | None = None
    """Column of the holdout (one that `data.columns.keep` kept) to report the metrics by."""

    rewards: bool = True
    """Whether the rewards score the completions too, for their means (a reward that runs code takes its time)."""

    also: list[AlsoConfig] = []
    """Further sets of questions, reported and not gated."""

    @field_validator("also")
    @classmethod
    def _named_once(cls, value: list[AlsoConfig]) -> list[AlsoConfig]:
        names = [entry.name for entry in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"also: two sets are named {name!r}; give each a name of its own")
            if name == "holdout":
                raise ValueError("also: 'holdout' is the holdout's own name; choose another")
        return value

    def local_files(self) -> list[Path]:
        """Files on this machine that the section names.

        Raises:
            ValueError: when one does not exist.
        """
        paths = [Path(entry.path) for entry in self.also if entry.path is not None and "://" not in entry.path]
        for path in paths:
            if not path.is_file():
                raise ValueError(f"evaluation.also: {path} does not exist; write the path of a .jsonl or .parquet file")
        return paths

    def resolved(self, folder: Path) -> Self:
        """A copy whose local paths are absolute.

        Args:
            folder: the config file's folder.

        Raises:
            BadInputError: when a file does not exist.
        """
        entries = []
        for entry in self.also:
            path = entry.path
            if path is not None and "://" not in path:
                path = str((folder / Path(path).expanduser()).resolve())
            entries.append(entry.model_copy(update={"path": path}))
        copy = self.model_copy(update={"also": entries})
        try:
            copy.local_files()
        except ValueError as error:
            raise BadInputError(str(error)) from error
        return copy
