"""The transformers engine: a decoding loop whose batch stays full.

Called through `open_generator`. Prompts wait longest first; a fixed number of slots share one preallocated key/value
cache. A completion that ends frees its slot for the next prompt, which is prefilled on its own and written in front of
the shared column; nothing is copied but that row. What all prompts begin with (the system prompt) is computed once, and
the n samples of one prompt share its prefill. Out of memory on a GPU halves the slots and goes on.

Limits: decoder-only models on one device. A model that keeps anything but plain keys and values (recurrent or linear
attention layers) goes through `model.generate` in length-sorted batches instead: the same tokens, more slowly.
"""

import gc
import itertools
import logging
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from components.errors import BadInputError
from components.generation.attention import fold_groups
from components.generation.choosing import choose, penalise, uniform_stream
from components.generation.interface import (
    Completion,
    EngineIdentity,
    Progress,
    Sampling,
    generation_defaults,
    identify,
)
from components.generation.tokens import encode_prompts, stop_token_ids, to_completion

log = logging.getLogger("grpo")

PLAIN_LAYERS = {"full_attention", "sliding_attention"}
CPU_SLOTS = 64  # beyond this a CPU is bound by arithmetic and larger batches gain nothing
MOST_SLOTS = 512
PREFILL_TOKENS = 16_384  # most padded tokens in one prefill, so that its activations stay small beside the cache
SLACK_COLUMNS = 64  # columns beyond the longest row: how many steps pass between two moves of the cache


@dataclass
class Row:
    """One completion being made."""

    prompt: int
    sample: int
    ids: list[int]
    occurrence: int
    generated: list[int] = field(default_factory=list)
    uniforms: np.ndarray | None = None


class SlotLayer(DynamicLayer):
    """Keys and values of one layer for all slots, in a buffer that never moves.

    `keys` and `values` have shape (slots, heads, columns, head size); the first `used` columns hold something.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, used: int) -> None:
        super().__init__()
        self.keys, self.values, self.used = keys, values, used
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one column in place; the columns so far are returned as views."""
        end = self.used + key_states.shape[-2]
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self.used


class Slots:
    """The shared cache, its attention mask, and who sits where."""

    def __init__(self, layers: list[DynamicLayer], rows: int, columns: int, vocabulary: int | None) -> None:
        device = layers[0].keys.device
        self.layers = [
            SlotLayer(_buffer(layer.keys, rows, columns), _buffer(layer.values, rows, columns), 0) for layer in layers
        ]
        self.cache = Cache(layers=self.layers)
        self.mask = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self.positions = torch.zeros(rows, dtype=torch.long, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.seen = None if vocabulary is None else torch.zeros(rows, vocabulary, dtype=torch.bool, device=device)
        self.rows: list[Row | None] = [None] * rows
        self.used = 0
        self.columns = columns

    def free(self) -> list[int]:
        """Slots without a row."""
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def seat(self, slots: list[int], rows: list[Row], prefilled: "Prefilled") -> None:
        """Put prefilled rows into free slots, right-aligned with everybody's newest column."""
        width = prefilled.mask.shape[1]
        if width > self.used:
            self._shift(self.used - width)
        index = torch.tensor(slots, device=self.mask.device)
        start = self.used - width
        for layer, (keys, values) in zip(self.layers, prefilled.layers, strict=True):
            layer.keys[index, :, start : self.used] = keys
            layer.values[index, :, start : self.used] = values
        self.mask[index] = 0
        self.mask[index, start : self.used] = prefilled.mask
        self.positions[index] = prefilled.mask.sum(dim=1)
        if self.seen is not None:
            for slot, row in zip(slots, rows, strict=True):
                self.seen[slot] = False
                self.seen[slot, torch.tensor(row.ids, device=self.seen.device)] = True
        for slot, row in zip(slots, rows, strict=True):
            self.rows[slot] = row

    def vacate(self, slot: int) -> None:
        """Free a slot; its columns stay until somebody else is seated."""
        self.rows[slot] = None

    def make_room(self) -> None:
        """Before a step: move everything left when the buffer is full, dropping columns nobody looks at."""
        if self.used < self.columns:
            return
        seated = torch.tensor([slot for slot, row in enumerate(self.rows) if row is not None], device=self.mask.device)
        first = int(self.mask[seated, : self.used].argmax(dim=1).min())
        assert first > 0, "the longest row fills the buffer, which was sized to hold it"
        self._shift(first)

    def shrink(self) -> None:
        """Keep the seated rows only."""
        keep = [slot for slot, row in enumerate(self.rows) if row is not None]
        index = torch.tensor(keep, device=self.mask.device)
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
        self.mask, self.positions, self.tokens = self.mask[index], self.positions[index], self.tokens[index]
        if self.seen is not None:
            self.seen = self.seen[index]
        self.rows = [self.rows[slot] for slot in keep]

    def _shift(self, columns: int) -> None:
        """Move all content left by so many columns (right when negative)."""
        used = self.used - columns
        if columns > 0:
            source, target = slice(columns, self.used), slice(0, used)
        else:
            source, target = slice(0, self.used), slice(-columns, used)
        for layer in self.layers:
            layer.keys[:, :, target] = layer.keys[:, :, source].clone()
            layer.values[:, :, target] = layer.values[:, :, source].clone()
            layer.used = used
        moved = self.mask[:, source].clone()
        self.mask.zero_()
        self.mask[:, target] = moved
        self.used = used


@dataclass
class Prefilled:
    """Prompts after one forward pass: (rows, heads, columns, head size) a layer, their mask, and the next scores."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    mask: torch.Tensor
    logits: torch.Tensor


class TransformersGenerator:
    """A causal language model of transformers, ready to complete prompts."""

    def __init__(
        self, directory: Path, model: Any, tokenizer: Any, identity: EngineIdentity, batch_size: int | None
    ) -> None:
        self.model, self.tokenizer, self.identity, self.batch_size = model, tokenizer, identity, batch_size
        self.device = model.device
        self.defaults = generation_defaults(directory)
        self.stops = frozenset(stop_token_ids(tokenizer, self.defaults))
        config = model.config.get_text_config()
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        layer_types = set(getattr(config, "layer_types", None) or {"full_attention"})
        self.plain = layer_types <= PLAIN_LAYERS and not getattr(model, "_is_stateful", False)
        # A window counts columns, and a shared prefix leaves empty ones between itself and the rest of a prompt.
        self.shares_prefix = layer_types == {"full_attention"} and getattr(config, "sliding_window", None) is None

    def generate(
        self, prompts: list[str], sampling: Sampling, on_progress: Progress | None = None
    ) -> list[list[Completion]]:
        """See `Generator.generate`."""
        sampling = sampling.resolved(self.defaults)
        rows = self._rows(prompts, sampling)
        if not rows:
            return []
        report = on_progress or (lambda _done, _total: None)
        loop = self._in_slots if self.plain else self._in_batches
        slots = min(self._slots(rows, sampling), len(rows))
        with torch.inference_mode():
            while True:
                try:
                    loop([row for row in rows if not self._ended(row, sampling)], rows, sampling, slots, report)
                    break
                except torch.OutOfMemoryError:
                    if slots == 1:
                        raise
                    slots = max(1, slots // 2)
                    log.warning("out of GPU memory while generating: going on with %d completions at once", slots)
                gc.collect()
                torch.cuda.empty_cache()
        answers: list[list[Completion]] = [[] for _ in prompts]
        for row in sorted(rows, key=lambda row: (row.prompt, row.sample)):
            completion = to_completion(self.tokenizer, row.generated, self.stops, sampling.max_new_tokens)
            answers[row.prompt].append(completion)
        return answers

    def _rows(self, prompts: list[str], sampling: Sampling) -> list[Row]:
        """All completions to make, longest prompt first (so that memory runs out at once or never)."""
        encoded = encode_prompts(self.tokenizer, prompts, sampling.max_new_tokens, self.context)
        occurrences: Counter[tuple[int, ...]] = Counter()
        rows = []
        for index, ids in enumerate(encoded):
            for sample in range(sampling.n):
                rows.append(Row(index, sample, ids, occurrences[tuple(ids)]))
                occurrences[tuple(ids)] += 1
        return sorted(rows, key=lambda row: (-len(row.ids), row.ids, row.prompt, row.sample))

    def _ended(self, row: Row, sampling: Sampling) -> bool:
        return bool(row.generated) and (
            row.generated[-1] in self.stops or len(row.generated) >= sampling.max_new_tokens
        )

    def _slots(self, rows: list[Row], sampling: Sampling) -> int:
        """How many completions to hold at once."""
        if self.batch_size is not None:
            return self.batch_size
        if self.device.type != "cuda":
            return CPU_SLOTS
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        column = 2 * config.num_hidden_layers * heads * size * self.model.dtype.itemsize
        columns = len(rows[0].ids) + sampling.max_new_tokens + SLACK_COLUMNS
        free, _total = torch.cuda.mem_get_info(self.device)
        # A quarter for the cache: the rest is left to attention's copies of it, scores and fragmentation.
        return max(1, min(MOST_SLOTS, int(free * 0.25) // (column * columns)))

    # The loop over slots ------------------------------------------------------------------------------------------

    def _in_slots(self, todo: list[Row], rows: list[Row], sampling: Sampling, count: int, report: Progress) -> None:
        """Complete the rows that have not ended, `count` at a time."""
        for row in todo:
            row.generated.clear()
        done = len(rows) - len(todo)
        waiting, count = deque(todo), min(count, len(todo))
        prefix = self._prefix(todo)
        columns = len(todo[0].ids) + sampling.max_new_tokens + SLACK_COLUMNS
        # Refilling one slot at a time would prefill alone, and waiting for all would decode half empty.
        threshold = max(1, count // 8)
        slots: Slots | None = None
        while waiting or (slots is not None and any(slots.rows)):
            free = slots.free() if slots is not None else list(range(min(count, len(waiting))))
            if waiting and (len(free) >= threshold or len(free) == (count if slots is None else len(slots.rows))):
                for chunk in self._chunks(waiting, len(free)):
                    prefilled = self._prefill(chunk, prefix)
                    if slots is None:
                        layers = [_as_layer(keys, values) for keys, values in prefilled.layers]
                        vocabulary = prefilled.logits.shape[-1] if sampling.repetition_penalty != 1 else None
                        slots = Slots(layers, count, columns, vocabulary)
                    seats, free = free[: len(chunk)], free[len(chunk) :]
                    slots.seat(seats, chunk, prefilled)
                    done += self._advance(slots, seats, prefilled.logits, sampling)
                report(done, len(rows))
                continue
            assert slots is not None
            if not waiting and len(free) * 4 >= len(slots.rows):
                slots.shrink()
            slots.make_room()
            logits = self._decode(slots)
            seats = [slot for slot, row in enumerate(slots.rows) if row is not None]
            finished = self._advance(slots, seats, logits[seats] if len(seats) < len(slots.rows) else logits, sampling)
            done += finished
            if finished:
                report(done, len(rows))

    def _chunks(self, waiting: "deque[Row]", room: int) -> Iterator[list[Row]]:
        """Take up to `room` rows off the queue, in chunks that one prefill can hold."""
        while waiting and room:
            longest = len(waiting[0].ids)
            size = max(1, min(room, PREFILL_TOKENS // longest))
            chunk = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            room -= len(chunk)
            yield chunk

    def _prefix(self, rows: list[Row]) -> DynamicCache | None:
        """Keys and values of what all prompts begin with, when that is worth sharing."""
        if not self.shares_prefix or len(rows) < 2:
            return None
        shared = _common_prefix([row.ids for row in rows])
        shared = min(shared, min(len(row.ids) for row in rows) - 1)  # each row needs a token of its own to go on from
        if shared < 8:
            return None
        ids = torch.tensor([rows[0].ids[:shared]], device=self.device)
        cache = DynamicCache()
        self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def _prefill(self, rows: list[Row], prefix: DynamicCache | None) -> Prefilled:
        """Run new prompts through the model; equal prompts once."""
        distinct: dict[int, int] = {}
        for row in rows:
            distinct.setdefault(row.prompt, len(distinct))
        prompts = {row.prompt: row.ids for row in rows}
        shared = prefix.get_seq_length() if prefix is not None else 0
        texts = [prompts[prompt][shared:] for prompt in distinct]
        width = max(map(len, texts))
        ids = torch.zeros(len(texts), width, dtype=torch.long)
        mask = torch.zeros(len(texts), shared + width, dtype=torch.long)
        mask[:, :shared] = 1
        for index, text in enumerate(texts):
            ids[index, width - len(text) :] = torch.tensor(text)
            mask[index, shared + width - len(text) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, shared:]
        cache = DynamicCache()
        for index, layer in enumerate(prefix.layers if prefix is not None else ()):
            shape = (len(texts), -1, -1, -1)
            cache.update(layer.keys.expand(*shape), layer.values.expand(*shape), index)
        mask = mask.to(self.device)
        output = self.model(
            input_ids=ids.to(self.device),
            attention_mask=mask,
            position_ids=positions.to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = output.logits[:, -1].float()
        if torch.isnan(logits).any():
            raise BadInputError(
                f"the model gives NaN in {self.identity.dtype}: its weights are broken or overflow; try dtype: float32"
            )
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        if len(distinct) < len(rows):
            index = torch.tensor([distinct[row.prompt] for row in rows], device=self.device)
            layers = [(keys[index], values[index]) for keys, values in layers]
            mask, logits = mask[index], logits[index]
        return Prefilled(layers, mask, logits)

    def _decode(self, slots: Slots) -> torch.Tensor:
        """One token for every slot. Free slots are computed along: leaving them out would copy the cache."""
        slots.mask[:, slots.used] = 1
        slots.used += 1
        output = self.model(
            input_ids=slots.tokens[:, None],
            attention_mask=slots.mask[:, : slots.used],
            position_ids=slots.positions[:, None],
            past_key_values=slots.cache,
            use_cache=True,
        )
        # A free slot counts on for nobody; learned position embeddings must not be asked for more than they have.
        slots.positions.add_(1).clamp_(max=(self.context or sys.maxsize) - 1)
        return output.logits[:, -1].float()

    def _advance(self, slots: Slots, seats: list[int], logits: torch.Tensor, sampling: Sampling) -> int:
        """Choose the next token of the given seats, and free those whose row has ended; how many did."""
        index = torch.tensor(seats, device=self.device)
        if slots.seen is not None and sampling.repetition_penalty is not None:
            logits = penalise(logits, slots.seen[index], sampling.repetition_penalty)
        rows = [row for row in (slots.rows[seat] for seat in seats) if row is not None]
        chosen = choose(logits, sampling, self._uniforms(rows, sampling))
        slots.tokens[index] = chosen
        if slots.seen is not None:
            slots.seen[index, chosen] = True
        finished = 0
        for seat, row, token in zip(seats, rows, chosen.tolist(), strict=True):
            row.generated.append(token)
            if self._ended(row, sampling):
                slots.vacate(seat)
                row.uniforms = None
                finished += 1
        return finished

    def _uniforms(self, rows: list[Row], sampling: Sampling) -> torch.Tensor | None:
        """This step's random number of each row."""
        if sampling.temperature == 0:
            return None
        for row in rows:
            if row.uniforms is None:
                row.uniforms = uniform_stream(sampling.seed, row.ids, row.occurrence, sampling.max_new_tokens)
        numbers = [row.uniforms[len(row.generated)] for row in rows if row.uniforms is not None]
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    # Models with other caches -------------------------------------------------------------------------------------

    def _in_batches(self, todo: list[Row], rows: list[Row], sampling: Sampling, count: int, report: Progress) -> None:
        """Complete rows with `model.generate`, batch by batch."""
        done = len(rows) - len(todo)
        for batch in itertools.batched(todo, count) if hasattr(itertools, "batched") else _batched(todo, count):
            width = max(len(row.ids) for row in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width, dtype=torch.long)
            for index, row in enumerate(batch):
                ids[index, width - len(row.ids) :] = torch.tensor(row.ids)
                mask[index, width - len(row.ids) :] = 1
            stop = min(self.stops)
            output = self.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                max_new_tokens=sampling.max_new_tokens,
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                eos_token_id=sorted(self.stops),
                pad_token_id=stop,
                logits_processor=LogitsProcessorList([_Chooser(self, list(batch), width, sampling)]),
            )
            for row, generated in zip(batch, output[:, width:].tolist(), strict=True):
                end = next((place for place, token in enumerate(generated) if token in self.stops), len(generated) - 1)
                row.generated = generated[: end + 1]
            done += len(batch)
            report(done, len(rows))


class _Chooser(LogitsProcessor):
    """Lets `model.generate` choose tokens as the slot loop does: only the chosen one keeps a finite score."""

    def __init__(self, generator: TransformersGenerator, rows: list[Row], width: int, sampling: Sampling) -> None:
        self.generator, self.rows, self.width, self.sampling = generator, rows, width, sampling

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores with everything but the choice at minus infinity."""
        step = input_ids.shape[1] - self.width
        logits = scores.float()
        penalty = self.sampling.repetition_penalty
        if penalty is not None and penalty != 1:
            seen = torch.zeros_like(logits, dtype=torch.bool)
            for index, row in enumerate(self.rows):
                seen[index, torch.tensor(row.ids, device=seen.device)] = True
            if step:
                seen.scatter_(1, input_ids[:, self.width :], True)
            logits = penalise(logits, seen, penalty)
        for row in self.rows:
            row.generated = [0] * step  # only its length is read by the random stream
        chosen = choose(logits, self.sampling, self.generator._uniforms(self.rows, self.sampling))
        return torch.full_like(scores, float("-inf")).scatter(1, chosen[:, None], 0.0)


@contextmanager
def open_transformers(
    directory: Path, *, dtype: str, device: str, batch_size: int | None
) -> Iterator[TransformersGenerator]:
    """Load a model directory; see `open_generator`.

    Raises:
        BadInputError: device or dtype is not to be had, or the model is not a decoder.
    """
    identity = identify("transformers", dtype=dtype, device=device)
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    if getattr(config, "is_encoder_decoder", False):
        raise BadInputError(f"{directory} holds a {config.model_type} model (encoder-decoder); GRPO needs a decoder")
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, identity.dtype), local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise BadInputError(f"the model in {directory} cannot be loaded: {error}") from error
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise BadInputError(
            f"{directory} lacks {len(missing)} weights (first: {missing[0]}), which would be random; give a whole model"
        )
    model = model.to(identity.device).eval()
    fold_groups(model)
    try:
        yield TransformersGenerator(directory, model, tokenizer, identity, batch_size)
    finally:
        del model
        gc.collect()
        if identity.device == "cuda":
            torch.cuda.empty_cache()


def _common_prefix(texts: list[list[int]]) -> int:
    """Tokens that all sequences begin with."""
    low, high = min(texts), max(texts)
    for index, (one, other) in enumerate(zip(low, high, strict=False)):
        if one != other:
            return index
    return min(len(low), len(high))


def _buffer(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    # Zeros, not garbage: attention multiplies masked columns by zero, and zero times NaN is NaN.
    return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=like.dtype, device=like.device)


def _as_layer(keys: torch.Tensor, values: torch.Tensor) -> DynamicLayer:
    layer = DynamicLayer()
    layer.keys, layer.values = keys, values
    return layer


def _batched(rows: list[Row], size: int) -> Iterator[tuple[Row, ...]]:
    for start in range(0, len(rows), size):
        yield tuple(rows[start : start + size])
