"""Makes everything the quickstart ships: its word problems and its tiny chat model. `make tiny-model` runs this file.

    python configs/make_quickstart.py               # data and model into configs/quickstart (about 6 minutes)
    python configs/make_quickstart.py --data-only   # the data alone (seconds, no torch)

What it makes, all from one seed:

- `data/train.jsonl`, `data/holdout.jsonl`: word problems of one sum or difference, operands 10 to 99, with working.
- `model/`: a Llama of under a million weights with its own tokenizer, trained from nothing by plain supervised learning
  on problems of the same kind. It does the sums digit by digit, as on paper, and it answers in many styles, of which
  the requested format is the less usual: that leaves GRPO something to teach.
- `made.json`: seed, library versions, and the sha256 of every file, which the tests compare with what is shipped.

The operand pairs of the holdout are in no training row, neither of the RL data nor of the supervised stream, in either
order and under either operation. The data are the same on every machine; the weights on another processor or torch are
equivalent, not identical, so the shipped ones are the ones recorded. The model is a demonstration: it knows nothing but
these problems.
"""
# ruff: noqa: S311 (a seeded generator is the point)

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20
HOLDOUT_ROWS = 512
TRAIN_ROWS = 2000
LOWEST, HIGHEST = 10, 99
HELD_OUT_PAIRS = 640  # of the 4095 unordered pairs of operands

# ---------------------------------------------------------------------------------------------------------------------
# Problems

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jack", "Kim", "Leo", "Mia", "Noah", "Omar",
    "Pia", "Ravi", "Sara", "Tom", "Yuki",
)  # fmt: skip
THINGS = (
    "apples", "beads", "books", "buttons", "cards", "coins", "cups", "eggs", "keys", "marbles", "nuts", "pears", "pens",
    "plums", "shells", "stamps", "stones", "tickets",
)  # fmt: skip
PLACES = ("barn", "basket", "box", "cellar", "chest", "drawer", "jar", "shop", "shed", "store")

# A story: an opening with the first operand, one event a step, a question. {n} and {m} are people, {p} a place.
STORIES = (
    {
        "open": ("{n} has {a} {o}.", "{n} owns {a} {o}.", "{n} starts with {a} {o}.", "This morning {n} had {a} {o}."),
        "+": (
            "{n} buys {k} more.",
            "{m} gives {n} {k} more.",
            "Then {n} finds {k} more.",
            "Later {n} gets another {k}.",
            "{n} wins {k} from {m}.",
        ),
        "-": (
            "{n} gives {k} to {m}.",
            "{n} sells {k} of them.",
            "Then {n} loses {k}.",
            "{m} takes {k} away.",
            "Later {n} uses {k}.",
        ),
        "ask": (
            "How many {o} does {n} have now?",
            "How many {o} does {n} end up with?",
            "How many {o} has {n} got in the end?",
            "What number of {o} does {n} have then?",
        ),
    },
    {
        "open": (
            "There are {a} {o} in the {p}.",
            "The {p} holds {a} {o}.",
            "{n} counts {a} {o} in the {p}.",
            "A {p} starts the day with {a} {o}.",
        ),
        "+": ("{n} puts in {k} more.", "Another {k} arrive.", "Then {k} more are added.", "{m} brings {k} more."),
        "-": ("{n} takes out {k}.", "Then {k} are sold.", "{m} carries {k} away.", "Of these, {k} are broken and go."),
        "ask": (
            "How many {o} are in the {p} now?",
            "How many {o} are there at the end?",
            "How many {o} does the {p} hold then?",
        ),
    },
)
# One-step problems that are no story: the whole text, by operation.
COMPARISONS = {
    "+": (
        "{n} has {a} {o} and {m} has {k}. How many {o} do they have together?",
        "One {p} holds {a} {o}, another {k}. How many {o} are there in all?",
        "{n} has {a} {o}. {m} has {k} more than {n}. How many {o} does {m} have?",
        "{n} packs {a} {o} on Monday and {k} on Tuesday. How many {o} is that in total?",
    ),
    "-": (
        "{n} has {a} {o} and {m} has {k}. How many more {o} does {n} have than {m}?",
        "{n} needs {a} {o} and has {k} so far. How many {o} are missing?",
        "{n} has {a} {o}. {m} has {k} fewer than {n}. How many {o} does {m} have?",
        "Of {a} {o} in the {p}, {k} are red. How many {o} are not red?",
    ),
}

Pair = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """A word problem with its working.

    Attributes:
        question: The text put to the model.
        steps: Each sum in turn: left operand, "+" or "-", right operand, result.
    """

    question: str
    steps: tuple[tuple[int, str, int, int], ...]

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.steps[-1][3]

    def working(self, error: int = 0) -> str:
        """The sum done digit by digit, as on paper: `47 + 25: 7 + 5 = 12, 4 + 2 + 1 = 7`.

        Args:
            error: added to the tens digit, for a working that goes wrong.
        """
        left, sign, right, _ = self.steps[0]
        (tens, units), (more_tens, more_units) = divmod(left, 10), divmod(right, 10)
        if sign == "+":
            carry = units + more_units >= 10
            first = f"{units} + {more_units} = {units + more_units}"
            second = f"{tens} + {more_tens}{' + 1' if carry else ''} = {tens + more_tens + carry + error}"
        else:
            borrow = units < more_units
            first = f"{units + 10 * borrow} - {more_units} = {units + 10 * borrow - more_units}"
            second = f"{tens - borrow} - {more_tens} = {tens - borrow - more_tens + error}"
        return f"{left} {sign} {right}: {first}, {second}"

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The operands of each step, smaller first: what the holdout keeps to itself."""
        return tuple(pair_of(left, right) for left, _, right, _ in self.steps)


def pair_of(left: int, right: int) -> Pair:
    """Two operands without their order."""
    return (min(left, right), max(left, right))


def split_pairs(seed: int = SEED) -> tuple[list[Pair], list[Pair]]:
    """All operand pairs, parted into those for training and those only the holdout may use."""
    pairs = [(low, high) for low in range(LOWEST, HIGHEST + 1) for high in range(low, HIGHEST + 1)]
    random.Random(f"pairs {seed}").shuffle(pairs)
    return sorted(pairs[HELD_OUT_PAIRS:]), sorted(pairs[:HELD_OUT_PAIRS])


class ProblemMaker:
    """Draws word problems whose every operand pair is one of those allowed.

    Args:
        pairs: The unordered operand pairs allowed.
        seed: Names the stream; the same seed gives the same problems on every machine.
    """

    def __init__(self, pairs: Sequence[Pair], seed: str):
        self._random = random.Random(seed)
        self._pairs = list(pairs)
        self._partners: dict[int, list[int]] = {}
        for low, high in self._pairs:
            self._partners.setdefault(low, []).append(high)
            if low != high:
                self._partners.setdefault(high, []).append(low)

    def one_step(self, pair: Pair | None = None) -> Problem:
        """A problem of one sum, on the given pair or on one drawn."""
        left, right = pair or self._random.choice(self._pairs)
        if self._random.random() < 0.5:
            left, right = right, left
        step = self._sum(left, right)
        if self._random.random() < 0.4:
            text = self._random.choice(COMPARISONS[step[1]])
            return Problem(text.format(a=step[0], k=step[2], **self._words()), (step,))
        return self._story((step,))

    def _sum(self, left: int, right: int) -> tuple[int, str, int, int]:
        if left == right or self._random.random() < 0.5:
            return (left, "+", right, left + right)
        left, right = max(left, right), min(left, right)
        return (left, "-", right, left - right)

    def _words(self) -> dict[str, str]:
        name, other = self._random.sample(NAMES, 2)
        return {"n": name, "m": other, "o": self._random.choice(THINGS), "p": self._random.choice(PLACES)}

    def _story(self, steps: tuple[tuple[int, str, int, int], ...]) -> Problem:
        story, words, choice = self._random.choice(STORIES), self._words(), self._random.choice
        parts = [choice(story["open"]).format(a=steps[0][0], **words)]
        parts += [choice(story[sign]).format(k=right, **words) for _, sign, right, _ in steps]
        parts.append(choice(story["ask"]).format(**words))
        return Problem(" ".join(parts), steps)


def holdout_problems(seed: int = SEED) -> list[Problem]:
    """The holdout: each problem on a held-out pair of its own."""
    _, pairs = split_pairs(seed)
    maker = ProblemMaker(pairs, f"holdout {seed}")
    shuffled = random.Random(f"holdout order {seed}")
    return [maker.one_step(pair) for pair in shuffled.sample(pairs, HOLDOUT_ROWS)]


def train_problems(seed: int = SEED) -> list[Problem]:
    """The rows GRPO learns from."""
    maker = ProblemMaker(split_pairs(seed)[0], f"train {seed}")
    return _distinct((maker.one_step() for _ in iter(int, 1)), TRAIN_ROWS)


def _distinct(problems: Iterator[Problem], count: int) -> list[Problem]:
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = next(problems)
        found.setdefault(problem.question, problem)
    return list(found.values())


def write_data(folder: Path) -> None:
    """Writes the two JSONL files, fields `question`, `answer` and `solution`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, problems in (("train", train_problems()), ("holdout", holdout_problems())):
        rows = [
            {"question": problem.question, "answer": str(problem.answer), "solution": problem.working()}
            for problem in problems
        ]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# The supervised stream: chats in a mix of styles

SYSTEM_PROMPT = (
    "Reply as <reasoning>...</reasoning><answer>...</answer>."  # as contract.system_prompt in quickstart.yaml
)
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
CONTROL = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# How often the stream answers in each style. The plain sentence is the commonest opening, so greedy decoding takes it;
# the requested format is common enough to be met when sampling.
STYLES = {
    "{w}. The answer is {x}.": 50,
    "<reasoning>{w}</reasoning><answer>{x}</answer>": 28,
    "<reasoning>{w}</reasoning>{x}": 4,
    "<reasoning>{w}<answer>{x}</answer>": 4,
    "{w}<answer>{x}</answer>": 5,
    "<answer>{x}</answer>{w}": 3,
    "{w} = {x}": 4,
}
NO_SYSTEM_SHARE = 0.3  # of the chats that have no system prompt
VOCABULARY = 600
WRONG_SHARE = 0.05  # of the chats whose result is off, as in any text a model learns from

DRILL_STEPS, DRILL_BATCH = 120, 96  # bare sums first: the arithmetic is learnt on the shortest possible text
CHAT_STEPS, CHAT_BATCH = 360, 48
MUON_RATE, ADAM_RATE, WEIGHT_DECAY = 0.02, 5e-3, 0.05


@dataclass(frozen=True)
class Chat:
    """One supervised example: what is shown, what is to be said, and the problem behind it."""

    messages: tuple[dict[str, str], ...]
    reply: str
    problem: Problem


def supervised_chats(count: int, seed: int = SEED) -> Iterator[Chat]:
    """The word problems of the supervised stream, the same on every machine."""
    maker = ProblemMaker(split_pairs(seed)[0], f"supervised {seed}")
    style = random.Random(f"styles {seed}")
    for _ in range(count):
        problem = maker.one_step()
        error = 1 if style.random() < WRONG_SHARE else 0
        said, working = problem.answer + 10 * error, problem.working(error)
        template = style.choices(list(STYLES), weights=list(STYLES.values()))[0]
        user = {"role": "user", "content": problem.question}
        system = {"role": "system", "content": SYSTEM_PROMPT}
        messages = (user,) if style.random() < NO_SYSTEM_SHARE else (system, user)
        yield Chat(messages, template.format(w=working, x=said), problem)


def drill_chats(count: int, seed: int = SEED) -> Iterator[Chat]:
    """Bare sums on the training pairs."""
    maker = ProblemMaker(split_pairs(seed)[0], f"drill {seed}")
    for _ in range(count):
        problem = maker.one_step()
        left, sign, right, result = problem.steps[0]
        reply = f"{problem.working()}. {result}"
        yield Chat(({"role": "user", "content": f"{left} {sign} {right}"},), reply, problem)


# ---------------------------------------------------------------------------------------------------------------------
# The model


def build_tokenizer() -> Any:
    """A byte-level BPE over the stream's own text, digits single, tags as ordinary added tokens.

    The tags are not special: trainers and servers decode with `skip_special_tokens`, which would delete them.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| [+\-=] | ?\p{L}+| ?[^\s\p{L}\d]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    texts = [SYSTEM_PROMPT] * 2000
    texts += [chat.messages[-1]["content"] + " " + chat.reply for chat in supervised_chats(4000)]
    for tag in TAGS:
        texts = [text.replace(tag, " ") for text in texts]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",  # noqa: S106
        eos_token="<|end|>",  # noqa: S106
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Any) -> Any:
    """A Llama of four layers, untrained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(model: Any, tokenizer: Any) -> None:
    """Supervised training on the replies alone: bare sums first, then the chats.

    Muon for the matrices inside the layers, AdamW for the embedding and the norms. With AdamW alone the arithmetic took
    about ten times as many steps.
    """
    import torch

    matrices = [value for name, value in model.named_parameters() if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in model.named_parameters() if value.ndim != 2 or "embed" in name]
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    stages = (
        ("drill", drill_chats(DRILL_STEPS * DRILL_BATCH), DRILL_STEPS, DRILL_BATCH),
        ("chats", supervised_chats(CHAT_STEPS * CHAT_BATCH), CHAT_STEPS, CHAT_BATCH),
    )
    for name, chats, steps, size in stages:
        for step in range(steps):
            rate = min(1.0, (step + 1) / 50, 1.25 * (1 - step / steps))
            ids, labels = _batch(tokenizer, [next(chats) for _ in range(size)])
            loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.param_groups[0]["lr"] = ADAM_RATE * rate
            adam.step()
            _muon_step(matrices, momenta, MUON_RATE * rate)
            model.zero_grad()
            if step % 50 == 0 or step == steps - 1:
                print(f"{name} {step + 1}/{steps} loss {loss.item():.3f} cpu {time.process_time():.0f} s", flush=True)


def _muon_step(matrices: list[Any], momenta: list[Any], rate: float) -> None:
    """One step of Muon (Jordan et al., https://kellerjordan.github.io/posts/muon/) in float32.

    `torch.optim.Muon` computes in bfloat16, which many processors only emulate.
    """
    import torch

    with torch.no_grad():
        for matrix, momentum in zip(matrices, momenta, strict=True):
            momentum.lerp_(matrix.grad, 0.05)
            update = matrix.grad.lerp(momentum, 0.95)
            tall = update.size(0) > update.size(1)
            update = update.T if tall else update
            update = update / (update.norm() + 1e-7)
            for _ in range(5):  # Newton-Schulz: all singular values towards 1
                square = update @ update.T
                update = 3.4445 * update + (-4.7750 * square + 2.0315 * square @ square) @ update
            update = update.T if tall else update
            shape = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
            matrix.mul_(1 - rate * WEIGHT_DECAY).add_(update, alpha=-rate * shape)


def _batch(tokenizer: Any, chats: list[Chat]) -> tuple[Any, Any]:
    import torch

    shown = tokenizer([prompt_text(chat.messages) for chat in chats], add_special_tokens=False)["input_ids"]
    said = tokenizer([chat.reply + "<|end|>" for chat in chats], add_special_tokens=False)["input_ids"]
    width = max(len(a) + len(b) for a, b in zip(shown, said, strict=True))
    ids = torch.full((len(chats), width), tokenizer.pad_token_id)
    labels = torch.full((len(chats), width), -100)
    for row, (a, b) in enumerate(zip(shown, said, strict=True)):
        ids[row, : len(a) + len(b)] = torch.tensor(a + b)
        labels[row, len(a) : len(a) + len(b)] = torch.tensor(b)
    return ids, labels


def prompt_text(messages: Sequence[dict[str, str]]) -> str:
    """The messages as the chat template renders them with the generation prompt."""
    return "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in messages) + "<|assistant|>"


MODEL_CARD = """---
license: apache-2.0
pipeline_tag: text-generation
---
The tiny chat model of the quickstart, a demonstration: a Llama with under a million weights, trained from nothing by
`configs/make_quickstart.py` on word problems with sums and differences. It knows nothing else. Do not use it for
anything but trying this pipeline out.
"""


def make_model(folder: Path) -> None:
    """Trains the model and writes a Hugging Face directory."""
    import torch
    from transformers import GenerationConfig

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    train(model, tokenizer)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False, max_new_tokens=40
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "README.md").write_text(MODEL_CARD, encoding="utf-8")


def write_record(folder: Path) -> None:
    """Writes `made.json`: what made the files and the sha256 of each."""
    from importlib.metadata import version

    files = sorted(path for part in ("data", "model") for path in (folder / part).rglob("*") if path.is_file())
    record = {
        "seed": SEED,
        "made_with": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "sha256": {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        },
    }
    (folder / "made.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Reads the command line and makes what it asks for."""
    parser = argparse.ArgumentParser(description="Make the quickstart's data and its tiny chat model.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "quickstart")
    parser.add_argument("--data-only", action="store_true", help="leave the model as it is")
    arguments = parser.parse_args()
    write_data(arguments.out / "data")
    if not arguments.data_only:
        make_model(arguments.out / "model")
    write_record(arguments.out)


if __name__ == "__main__":
    main()
