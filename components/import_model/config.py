"""The `model` section of a run config: which base model, and how it is loaded.

Read by import_model (source, revision, mirror, chat_template, allow_pickle, licence) and by training, which loads the
model (dtype, attention, backend, trust_remote_code). Light: looks at the file system only in `with_paths_against` and
`local_files`, which run where the config was written.
"""

import difflib
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from components.errors import BadInputError
from components.sections import Section

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?")
_HUB_PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/]+?)(?:/tree/[^/]+)?/?")
_TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt")


class ModelConfig(Section):
    """The base model."""

    source: str
    """A hub id such as Qwen/Qwen2.5-1.5B-Instruct, a folder, an s3:// URI of a folder, or a .gguf file."""

    revision: str | None = None
    """Branch, tag or commit of a hub model: resolved when the run starts, pinned and recorded; null is the main one."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the base weights while training; auto is bfloat16 on a GPU that has it, float32 otherwise. A .gguf
    file is dequantised to it, to float32 for auto."""

    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = "auto"
    """Attention implementation."""

    backend: Literal["transformers", "unsloth"] = "transformers"
    """Which library loads and patches the model for training."""

    mirror: bool = True
    """Whether a local folder is copied into the store; false uses it in place, verified by the hashes of its files."""

    chat_template: str | None = None
    """A chat template, or a file that holds one, to use instead of the model's own; needed where it has none."""

    allow_pickle: bool = False
    """Whether pickle weights (.bin, .pt) may be converted to safetensors; loaded without running code in them."""

    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run; without it such files are not even copied."""

    licence: str | None = None
    """Licence to record for the model, such as apache-2.0; null takes what its README, config or LICENSE file says."""

    @field_validator("source")
    @classmethod
    def _known_form(cls, source: str) -> str:
        if not source.strip():
            raise ValueError("source is empty; write a hub id such as Qwen/Qwen2.5-1.5B-Instruct, or a folder")
        page = _HUB_PAGE.fullmatch(source)
        if page:
            raise ValueError(f"source {source!r} is a web page; write its hub id {page[1]!r}")
        if "://" in source and not source.startswith("s3://"):
            raise ValueError(f"source {source!r} is neither a hub id, a folder, an s3:// URI nor a .gguf file")
        return source

    @model_validator(mode="after")
    def _options_fit_the_source(self) -> Self:
        is_hub_or_folder = not self.source.startswith("s3://") and not self.source.endswith(".gguf")
        if self.revision is not None and not is_hub_or_folder:
            raise ValueError(f"revision applies to hub ids, not to {self.source!r}; remove it")
        if not self.mirror and not is_hub_or_folder:
            raise ValueError(f"mirror: false uses a local folder in place; {self.source!r} is none: write mirror: true")
        if not self.mirror and self.chat_template is not None:
            raise ValueError(
                "mirror: false leaves the folder as it is, so chat_template cannot be added; write mirror: true"
            )
        return self

    def kind(self) -> Literal["hub", "folder", "s3", "gguf"]:
        """What `source` names on this machine.

        Raises:
            BadInputError: when it is a path to nothing, to a file of another kind, or has no known form.
        """
        if self.source.startswith("s3://"):
            return "s3"
        path = Path(self.source).expanduser()
        if path.is_dir():
            return "folder"
        if path.is_file():
            if path.suffix.lower() == ".gguf":
                return "gguf"
            raise BadInputError(f"model.source: {path} is a file and no .gguf; name the model's folder or a .gguf file")
        if self._looks_like_a_path() or not _HUB_ID.fullmatch(self.source):
            raise BadInputError(f"model.source: {_missing(path)}")
        return "hub"

    def with_paths_against(self, base: Path) -> Self:
        """The same section with a relative folder or file made absolute, and a template file replaced by its text.

        Args:
            base: folder they are relative to (the config file's).

        Raises:
            BadInputError: when the template file cannot be read.
        """
        changed: dict[str, str] = {}
        if not self.source.startswith("s3://"):
            path = base / Path(self.source).expanduser()
            # A hub id and a relative folder look alike: the folder wins when it is there.
            if path.exists() or self._looks_like_a_path():
                changed["source"] = str(path.resolve())
        template = self.chat_template
        if template is not None and "{" not in template:
            file = base / Path(template.strip()).expanduser()
            try:
                changed["chat_template"] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadInputError(
                    f"model.chat_template: {template!r} is neither a template nor a file that can be read ({error}); "
                    "write the template itself, or the path of a .jinja file"
                ) from error
        return self.model_copy(update=changed)

    def local_files(self) -> list[Path]:
        """Files and folders of this machine that the section names; they travel with a run submitted elsewhere.

        Raises:
            BadInputError: when one does not exist.
        """
        return [Path(self.source).expanduser()] if self.kind() in ("folder", "gguf") else []

    def _looks_like_a_path(self) -> bool:
        return self.source.startswith(("/", ".", "~")) or self.source.endswith(".gguf") or self.source.count("/") > 1


def _missing(path: Path) -> str:
    """One sentence for a path that is not there, with what may have been meant."""
    near: list[str] = []
    if path.parent.is_dir():
        near = difflib.get_close_matches(path.name, sorted(child.name for child in path.parent.iterdir()), n=1)
    meant = (
        f"; was {path.parent / near[0]} meant?"
        if near
        else "; name a folder, a .gguf file, or a hub id such as org/name"
    )
    return f"{path} does not exist{meant}"
