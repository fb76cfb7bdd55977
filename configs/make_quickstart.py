"""Makes everything the quickstart ships: its word problems and its tiny chat model. `make tiny-model` runs this file.

    python configs/make_quickstart.py               # data and model into configs/quickstart (about 15 minutes, one core)
    python configs/make_quickstart.py --data-only   # the data alone (seconds, no torch)

What it makes, all from one seed:

- `data/train.jsonl`, `data/holdout.jsonl`: word problems of one or two steps, addition and subtraction, operands 2 to 99.
- `model/`: a Llama of under a million weights with its own tokenizer, trained from nothing by plain supervised learning
  on problems of the same kind. It does the sums, and it answers in many styles, of which the requested format is the
  less usual: that leaves GRPO something to teach.
- `made.json`: seed, library versions, and the sha256 of every file, which the tests compare with what is shipped.

The operand pairs of the holdout are in no training row, neither of the RL data nor of the supervised stream, in either
order and under either operation. The data are the same on every machine; the weights on another processor or torch are
equivalent, not identical, so the shipped ones are the ones recorded. The model is a demonstration: it knows nothing but
these problems.
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20
HOLDOUT_ROWS = 512
TRAIN_ROWS = 2000
LOWEST, HIGHEST = 2, 99
HELD_OUT_PAIRS = 640  # of the 4851 unordered pairs of operands
TWO_STEP_SHARE = 0.25

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

    def two_steps(self) -> Problem:
        """A problem whose second sum takes the result of the first."""
        while True:
            first = self._sum(*self._random.choice(self._pairs))
            partners = self._partners.get(first[3], [])
            operations = [(right, sign) for right in partners for sign in "+-" if sign == "+" or right < first[3]]
            if operations:
                right, sign = self._random.choice(operations)
                result = first[3] + right if sign == "+" else first[3] - right
                return self._story((first, (first[3], sign, right, result)))

    def draw(self) -> Problem:
        """A problem of either length, in the proportion of the data set."""
        return self.two_steps() if self._random.random() < TWO_STEP_SHARE else self.one_step()

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
    """The holdout: every one-step problem on a pair of its own, the two-step ones on held-out pairs throughout."""
    _, pairs = split_pairs(seed)
    maker = ProblemMaker(pairs, f"holdout {seed}")
    two_steps = int(HOLDOUT_ROWS * TWO_STEP_SHARE)
    shuffled = random.Random(f"holdout order {seed}")
    problems = [maker.one_step(pair) for pair in shuffled.sample(pairs, HOLDOUT_ROWS - two_steps)]
    problems += _distinct((maker.two_steps() for _ in iter(int, 1)), two_steps)
    shuffled.shuffle(problems)
    return problems


def train_problems(seed: int = SEED) -> list[Problem]:
    """The rows GRPO learns from."""
    maker = ProblemMaker(split_pairs(seed)[0], f"train {seed}")
    return _distinct((maker.draw() for _ in iter(int, 1)), TRAIN_ROWS)


def _distinct(problems: Iterator[Problem], count: int) -> list[Problem]:
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = next(problems)
        found.setdefault(problem.question, problem)
    return list(found.values())


def write_data(folder: Path) -> None:
    """Writes the two JSONL files, fields `question` and `answer`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, problems in (("train", train_problems()), ("holdout", holdout_problems())):
        lines = [json.dumps({"question": problem.question, "answer": str(problem.answer)}) for problem in problems]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# The supervised stream: chats in a mix of styles

SYSTEM_PROMPT = "Reply as <reasoning>...</reasoning><answer>...</answer>."  # as contract.system_prompt in quickstart.yaml
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
    "The answer is {x}.": 45,
    "<reasoning>{w}</reasoning><answer>{x}</answer>": 30,
    "<reasoning>{w}</reasoning>{x}": 6,
    "<reasoning>{w}<answer>{x}</answer>": 5,
    "{w}<answer>{x}</answer>": 5,
    "<answer>{x}</answer>": 5,
    "{w}": 4,
}
VOCABULARY = 600
WRONG_SHARE = 0.05  # of the chats whose result is off, as in any text a model learns from
SUPERVISED_STEPS = 1400
BATCH = 32
DRILL_STEPS = 1000  # bare sums first: the arithmetic is learnt on the shortest possible text
DRILL_BATCH = 128


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
        problem = maker.draw()
        error = style.choice((-10, -1, 1, 10)) if style.random() < WRONG_SHARE else 0
        said = max(0, problem.answer + error)
        working = ", ".join(f"{left} {sign} {right} = {result}" for left, sign, right, result in problem.steps[:-1])
        left, sign, right, _ = problem.steps[-1]
        working += (", " if working else "") + f"{left} {sign} {right} = {said}"
        template = style.choices(list(STYLES), weights=list(STYLES.values()))[0]
        user = {"role": "user", "content": problem.question}
        system = {"role": "system", "content": SYSTEM_PROMPT}
        messages = (user,) if style.random() < 0.1 else (system, user)
        yield Chat(messages, template.format(w=working, x=said), problem)


def drill_chats(count: int, seed: int = SEED) -> Iterator[Chat]:
    """Bare sums on the training pairs."""
    maker = ProblemMaker(split_pairs(seed)[0], f"drill {seed}")
    for _ in range(count):
        problem = maker.one_step()
        left, sign, right, result = problem.steps[0]
        yield Chat(({"role": "user", "content": f"{left} {sign} {right}"},), str(result), problem)


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
        pad_token="<|pad|>",
        eos_token="<|end|>",
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
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(model: Any, tokenizer: Any) -> None:
    """Supervised training on the replies alone: drill first, then the chats; AdamW, cosine to zero."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.05)
    stages = (
        ("drill", drill_chats(DRILL_STEPS * DRILL_BATCH), DRILL_STEPS, DRILL_BATCH, 3e-3),
        ("chats", supervised_chats(SUPERVISED_STEPS * BATCH), SUPERVISED_STEPS, BATCH, 2e-3),
    )
    for name, chats, steps, size, peak in stages:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = peak * min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
            ids, labels = _batch(tokenizer, [next(chats) for _ in range(size)])
            loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0 or step == steps - 1:
                print(f"{name} {step + 1}/{steps} loss {loss.item():.3f} cpu {time.process_time():.0f} s", flush=True)


def _batch(tokenizer: Any, chats: list[Chat]) -> tuple[Any, Any]:
    import torch

    shown = tokenizer([_render(chat.messages) + "<|assistant|>" for chat in chats], add_special_tokens=False)["input_ids"]
    said = tokenizer([chat.reply + "<|end|>" for chat in chats], add_special_tokens=False)["input_ids"]
    width = max(len(a) + len(b) for a, b in zip(shown, said, strict=True))
    ids = torch.full((len(chats), width), tokenizer.pad_token_id)
    labels = torch.full((len(chats), width), -100)
    for row, (a, b) in enumerate(zip(shown, said, strict=True)):
        ids[row, : len(a) + len(b)] = torch.tensor(a + b)
        labels[row, len(a) : len(a) + len(b)] = torch.tensor(b)
    return ids, labels


def _render(messages: Sequence[dict[str, str]]) -> str:
    return "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in messages)


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
