"""Reads a LoRA adapter and says, for each tensor of the base model, what the adapter does to it.

Used by `merge`. Covers LoRA with rsLoRA, DoRA, rank and alpha patterns, biases, modules_to_save, trainable tokens, tied
embeddings and transposed (Conv1D) layers, as peft 0.21 saves them. Anything else the adapter's config asks for or its
weights hold is refused by name: what isn't understood must not be left out silently.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from components.errors import BadInputError
from components.merge_lora.weights import Tensor, read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
HEAD = "lm_head.weight"
"""What transformers' causal models call their output head, whose weights a tied checkpoint leaves out."""

UNDERSTOOD = frozenset(
    {
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules",
        "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha",
        "lora_bias", "lora_dropout", "megatron_core", "modules_to_save", "peft_type", "peft_version",
        "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules", "task_type",
        "trainable_token_indices", "use_dora", "use_rslora",
    }
)  # fmt: skip
"""Keys of adapter_config.json that a merge honours or that do not bear on it. Another key with a value is refused."""

EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|tokens_embed)\.weight$")
"""Names of input embeddings, needed only where an adapter touches one that the output head is tied to."""

INITIAL_ONLY = frozenset({"eva_config", "corda_config", "loftq_config", "lora_ga_config"})
"""Settings of how an adapter was started: harmless where `init_lora_weights` is."""

STARTS = frozenset({"true", "false", "gaussian", "eva", "orthogonal"})
"""Values of `init_lora_weights` that leave the base weights alone. Others (PiSSA, OLoRA, LoftQ, ...) change them when
training starts, so that the adapter alone does not say what was trained."""

CONV1D_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"})
"""Model types whose blocks use transformers' Conv1D, which stores weights transposed (in, out)."""


@dataclass(frozen=True)
class LowRank:
    """A low-rank update of one weight.

    Attributes:
        a, b: the factors; `b @ a` has the shape (out, in), or its transpose where `transposed`.
        scaling: what the product is multiplied by.
        transposed: the weight is stored as (in, out): Conv1D and embeddings.
        magnitude: DoRA's column norms, shape (out,), where the adapter is one.
    """

    a: Tensor
    b: Tensor
    scaling: float
    transposed: bool
    magnitude: Tensor | None = None

    def product(self, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """`b @ a` in 32 bit, in the weight's orientation, not yet scaled.

        Args:
            scratch: flat float32 memory for the product, at least as large as it; new memory costs more time than the
                product itself.
        """
        b, a = self.b.read().float(), self.a.read().float()
        if scratch is None:
            delta = b @ a
        else:
            delta = scratch[: b.shape[0] * a.shape[1]].view(b.shape[0], a.shape[1])
            torch.mm(b, a, out=delta)
        return delta.T if self.transposed else delta

    def squared_norm(self) -> float:
        """Squared Frobenius norm of the scaled product, from the factors' Gram matrices."""
        b, a = self.b.read().double(), self.a.read().double()
        return max(float(((b.T @ b) * (a @ a.T)).sum()), 0.0) * self.scaling**2


@dataclass(frozen=True)
class Edit:
    """What an adapter does to one tensor: replaced, then its rows, then an update or a vector added.

    Attributes:
        replacement: trained in full (modules_to_save, bias), stands in for the base tensor.
        rows: trained token rows and their indices.
        low_rank: LoRA's update.
        added: a vector to add and its factor (`lora_bias`).
        source: the base tensor it starts from, where that is another (an output head untied from its embedding).
    """

    replacement: Tensor | None = None
    rows: tuple[Tensor, tuple[int, ...]] | None = None
    low_rank: LowRank | None = None
    added: tuple[Tensor, float] | None = None
    source: str | None = None

    @property
    def is_replacement(self) -> bool:
        """Whether all that happens is that the tensor is replaced."""
        return self.replacement is not None and self == Edit(replacement=self.replacement, source=self.source)

    @property
    def is_sum(self) -> bool:
        """Whether all that happens is that a low-rank update is added, which can be done piece by piece."""
        update = self.low_rank
        return update is not None and update.magnitude is None and self == Edit(low_rank=update, source=self.source)


@dataclass(frozen=True)
class AdapterPlan:
    """What an adapter does to a base model.

    Attributes:
        edits: by tensor name of the base model.
        untied: names of output heads that the merged model holds apart from the embedding they were tied to.
        keys: how many tensors the adapter has, every one of them used.
        targets: module path in the model (as peft names it) -> tensor name, of low-rank updates; without heads that
            the base ties to its embedding, which peft's own merge gets wrong (it adds both updates to both).
        config: adapter_config.json.
    """

    edits: dict[str, Edit]
    untied: tuple[str, ...]
    keys: int
    targets: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def read_adapter_config(directory: Path) -> dict[str, Any]:
    """adapter_config.json, checked for what a merge does not understand.

    Args:
        directory: the adapter.

    Raises:
        BadInputError: naming the setting and what to do.
    """
    path = directory / CONFIG
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config.get("peft_type") != "LORA":
        raise BadInputError(f"{path}: peft_type is {config.get('peft_type')!r}; only LORA adapters are merged")
    start = str(config.get("init_lora_weights", True)).lower()
    if start not in STARTS:
        raise BadInputError(
            f"{path}: init_lora_weights is {start!r}; unlike {', '.join(sorted(STARTS))} it changes the base weights "
            "before training, so the adapter does not fit the base as imported: save it with "
            "path_initial_model_for_weight_conversion first"
        )
    for key, value in config.items():
        if key not in UNDERSTOOD and key not in INITIAL_ONLY and value not in (None, False, {}, []):
            raise BadInputError(f"{path}: {key} is {value!r}, which the merge does not support; train without it")
    if config.get("bias", "none") not in {"none", "all", "lora_only"}:
        raise BadInputError(f"{path}: bias is {config['bias']!r}; none, all and lora_only are supported")
    return config


def plan_edits(adapter: Path, base: Mapping[str, Tensor], model_config: Mapping[str, Any]) -> AdapterPlan:
    """Work out what each tensor of the adapter does.

    Args:
        adapter: directory with adapter_config.json and adapter_model.safetensors.
        base: tensors of the base model.
        model_config: the base model's config.json.

    Raises:
        BadInputError: when a tensor of the adapter has no place in the base model, has the wrong shape, or belongs to
            a method that is not supported.
    """
    config = read_adapter_config(adapter)
    weights = adapter / WEIGHTS
    if not weights.exists():
        raise BadInputError(f"{adapter} has no {WEIGHTS}; save the adapter as safetensors")
    tensors = read_header(weights)
    return _Planner(weights, config, tensors, base, model_config).plan()


def match_name(name: str, base: Mapping[str, Tensor]) -> str | None:
    """The base tensor that a parameter is stored as, allowing for a prefix that only one of the two has.

    Args:
        name: path of the parameter in the model.
        base: the checkpoint's tensors by name.
    """
    if name in base:
        return name
    found = [other for other in base if other.endswith(f".{name}") or name.endswith(f".{other}")]
    return found[0] if len(found) == 1 else None


@dataclass
class _Planner:
    weights: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    base: Mapping[str, Tensor]
    model_config: Mapping[str, Any]

    def plan(self) -> AdapterPlan:
        unused = {key.removeprefix(PREFIX): tensor for key, tensor in self.tensors.items() if key.startswith(PREFIX)}
        if len(unused) != len(self.tensors) or not unused:
            stray = next((key for key in self.tensors if not key.startswith(PREFIX)), None)
            raise BadInputError(
                f"{self.weights}: {stray or 'no tensor'!r} is not a key that peft's save_pretrained writes"
            )
        keys = len(unused)
        edits: dict[str, Edit] = {}
        targets: dict[str, str] = {}
        heads: dict[str, str] = {}

        def resolve(module: str, parameter: str) -> str:
            name = match_name(f"{module}.{parameter}", self.base)
            if name is not None:
                return name
            source = self._tied_source(module, parameter)
            heads[f"{module}.{parameter}"] = source
            edits.setdefault(f"{module}.{parameter}", Edit(source=source))
            return f"{module}.{parameter}"

        def update(name: str, **changes: Any) -> None:
            edits[name] = replace(edits.get(name, Edit()), **changes)

        for key in list(unused):
            if match := re.fullmatch(r"(.+)\.lora_A\.weight", key):
                module = match[1]
                a, b = unused.pop(key), self._take(unused, f"{module}.lora_B.weight", key)
                magnitude = unused.pop(f"{module}.lora_magnitude_vector", None)
                name = resolve(module, "weight")
                update(name, low_rank=self._low_rank(module, name, heads, a, b, magnitude, embedding=False))
                targets[module] = name
                bias = unused.pop(f"{module}.lora_B.bias", None)
                if bias is not None:
                    update(resolve(module, "bias"), added=(bias, self._scaling(module, a.shape[0])))
            elif match := re.fullmatch(r"(.+)\.lora_embedding_A", key):
                module = match[1]
                a, b = unused.pop(key), self._take(unused, f"{module}.lora_embedding_B", key)
                magnitude = unused.pop(f"{module}.lora_magnitude_vector", None)
                name = resolve(module, "weight")
                update(name, low_rank=self._low_rank(module, name, heads, a, b, magnitude, embedding=True))
                targets[module] = name
        for key in list(unused):
            if match := re.fullmatch(r"(.+)\.token_adapter\.trainable_tokens_delta", key):
                name = resolve(match[1], "weight")
                rows = unused.pop(key)
                update(name, rows=(rows, self._token_indices(match[1], rows)))
            elif match := re.fullmatch(r"(.+?)(?:\.base_layer)?\.(weight|bias)", key):
                if ".lora_" in key:
                    continue
                name = resolve(match[1], match[2])
                self._check_shape(name, heads, key, unused[key].shape)
                update(name, replacement=unused.pop(key))
        if unused:
            raise BadInputError(
                f"{self.weights}: {len(unused)} of {keys} tensors would not be used, the first {PREFIX}"
                f"{next(iter(unused))}; the merge does not know this kind of adapter"
            )
        for name, edit in edits.items():
            if edit.rows is not None and (edit.low_rank is not None or edit.replacement is not None):
                raise BadInputError(f"{self.weights}: {name} has trained token rows and another update; train with one")
        edits, untied = self._settle_ties(edits, heads)
        targets = {module: name for module, name in targets.items() if name not in heads}
        return AdapterPlan(edits=edits, untied=untied, keys=keys, targets=targets, config=self.config)

    def _take(self, unused: dict[str, Tensor], key: str, partner: str) -> Tensor:
        if key not in unused:
            raise BadInputError(
                f"{self.weights}: {PREFIX}{partner} has no partner {PREFIX}{key}; the file is incomplete"
            )
        return unused.pop(key)

    def _tied_source(self, module: str, parameter: str) -> str:
        """The embedding that an output head without weights of its own is tied to."""
        embeddings = [name for name in self.base if EMBEDDING.search(name)]
        is_head = parameter == "weight" and module.rpartition(".")[2] in {"lm_head", "embed_out", "output"}
        if not (is_head and is_tied(self.model_config, self.base) and len(embeddings) == 1):
            raise BadInputError(
                f"{self.weights}: it was trained on {module}.{parameter}, which the base model does not have; "
                "the adapter belongs to another model"
            )
        return embeddings[0]

    def _scaling(self, module: str, rank: int) -> float:
        expected = int(_pattern_value(self.config.get("rank_pattern"), module, self.config["r"]))
        if rank != expected:
            raise BadInputError(
                f"{self.weights}: {module} has rank {rank} and adapter_config.json says {expected}; "
                "the two files belong to different adapters"
            )
        alpha = _pattern_value(self.config.get("alpha_pattern"), module, self.config["lora_alpha"])
        return float(alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank)

    def _low_rank(
        self,
        module: str,
        name: str,
        heads: Mapping[str, str],
        a: Tensor,
        b: Tensor,
        magnitude: Tensor | None,
        *,
        embedding: bool,
    ) -> LowRank:
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            raise BadInputError(
                f"{self.weights}: {module} has factors of shapes {a.shape} and {b.shape}; only linear layers and "
                "embeddings are merged"
            )
        if bool(self.config.get("use_dora")) != (magnitude is not None):
            raise BadInputError(
                f"{self.weights}: use_dora is {self.config.get('use_dora')} and {module} has "
                f"{'a' if magnitude is not None else 'no'} magnitude vector; the two files belong to different adapters"
            )
        shape = self._shape(name, heads)
        straight, turned = (b.shape[0], a.shape[1]), (a.shape[1], b.shape[0])
        if embedding:
            transposed = True
        elif straight == turned:
            transposed = self.model_config.get("model_type") in CONV1D_MODELS and name not in heads
        else:
            transposed = shape == turned
        if shape != (turned if transposed else straight):
            raise BadInputError(
                f"{self.weights}: the update of {module} has shape {straight} and the base's {name} {shape}; "
                "the adapter belongs to another model"
            )
        return LowRank(a, b, self._scaling(module, a.shape[0]), transposed, magnitude)

    def _shape(self, name: str, heads: Mapping[str, str]) -> tuple[int, ...]:
        return self.base[heads.get(name, name)].shape

    def _check_shape(self, name: str, heads: Mapping[str, str], key: str, shape: tuple[int, ...]) -> None:
        if shape != self._shape(name, heads):
            raise BadInputError(
                f"{self.weights}: {PREFIX}{key} has shape {shape} and the base's {name} {self._shape(name, heads)}; "
                "a model whose vocabulary or layers were resized can't be merged into the base as imported"
            )

    def _token_indices(self, module: str, rows: Tensor) -> tuple[int, ...]:
        given = self.config.get("trainable_token_indices")
        if isinstance(given, Mapping):
            found = [value for key, value in given.items() if module == key or module.endswith(f".{key}")]
            given = found[0] if len(found) == 1 else None
        if given is None or len(given) != rows.shape[0]:
            raise BadInputError(
                f"{self.weights}: {module} holds {rows.shape[0]} trained token rows and trainable_token_indices of "
                "adapter_config.json does not say which"
            )
        return tuple(int(index) for index in given)

    def _settle_ties(self, edits: dict[str, Edit], heads: Mapping[str, str]) -> tuple[dict[str, Edit], tuple[str, ...]]:
        """Keep head and embedding tied where the adapter does the same to both, otherwise hold them apart."""
        for head, embedding in heads.items():
            if embedding in edits and _do_the_same(edits[head], edits[embedding]):
                return {name: edit for name, edit in edits.items() if name != head}, ()
            return edits, (head,)
        if HEAD in self.base or not is_tied(self.model_config, self.base):
            return edits, ()
        for name, edit in edits.items():
            # Trained token rows are shared with the head (peft ties them); anything else left the head as it was.
            if EMBEDDING.search(name) and (edit.low_rank is not None or edit.replacement is not None):
                return edits | {HEAD: Edit(source=name)}, (HEAD,)
        return edits, ()


def _do_the_same(head: Edit, embedding: Edit) -> bool:
    if head.low_rank is not None and embedding.low_rank is not None:
        return torch.equal(head.low_rank.a.read(), embedding.low_rank.b.read().T) and torch.equal(
            head.low_rank.b.read(), embedding.low_rank.a.read().T
        )
    if head.low_rank is None and embedding.low_rank is None and head.replacement and embedding.replacement:
        return torch.equal(head.replacement.read(), embedding.replacement.read())
    return False


def is_tied(model_config: Mapping[str, Any], base: Iterable[str]) -> bool:
    """Whether the output head shares the input embedding's weights.

    Args:
        model_config: config.json; asked first, a nested text model's part before the whole.
        base: names of the checkpoint's tensors; decide where config.json is silent.
    """
    nested = model_config.get("text_config")
    for part in (nested, model_config):
        if isinstance(part, Mapping) and "tie_word_embeddings" in part:
            return bool(part["tie_word_embeddings"])
    return HEAD not in set(base)


def _pattern_value(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The first pattern that matches the end of a module's path, as peft's get_pattern_key finds it."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def apply_edit(edit: Edit, weight: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The merged tensor in 32 bit, not yet rounded.

    The update is `scaling * B A` (Hu et al., LoRA, https://arxiv.org/abs/2106.09685); with a magnitude `m` the sum is
    then scaled to `m / |W + BA|` per output (Liu et al., DoRA, https://arxiv.org/abs/2402.09353). Operations and their
    order are peft's, so that float32 results are equal bit for bit.

    Args:
        edit: what to do.
        weight: the base tensor, any float dtype; left as it is.

    Returns:
        The merged tensor (float32), and the squared norm of the low-rank or added part (0.0 where there is none).
    """
    if edit.replacement is not None:
        weight = edit.replacement.read()
    merged = weight.float()
    squared_norm = 0.0
    if edit.rows is not None:
        rows, indices = edit.rows
        merged = merged.index_copy(0, torch.tensor(indices), rows.read().float())
    if edit.low_rank is not None:
        update = edit.low_rank
        delta = update.product().mul_(update.scaling)
        squared_norm = update.squared_norm()
        if update.magnitude is None:
            merged = delta.add_(merged)
        else:
            merged = _scaled_to_magnitude(merged, delta, update.magnitude.read().float(), transposed=update.transposed)
    if edit.added is not None:
        vector, scaling = edit.added
        step = vector.read().float() * scaling
        squared_norm = float(torch.linalg.vector_norm(step)) ** 2
        merged = merged + step
    return merged, squared_norm


def _scaled_to_magnitude(
    weight: torch.Tensor, delta: torch.Tensor, magnitude: torch.Tensor, *, transposed: bool
) -> torch.Tensor:
    upright, upright_delta = (weight.T, delta.T) if transposed else (weight, delta)
    norm = torch.linalg.norm(upright + upright_delta, dim=1)
    factor = (magnitude / norm).view(-1, 1)
    return (factor.T if transposed else factor) * (weight + delta)
