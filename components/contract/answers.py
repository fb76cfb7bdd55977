"""When two answers are equal. (First form; deepened next.)"""

from components.contract.config import AnswerConfig
from components.contract.number import read_number


class Equality:
    """Compares answers of the configured kind."""

    def __init__(self, config: AnswerConfig) -> None:
        self.config = config

    def equal(self, answer: str, gold: str) -> bool:
        """Whether the answer has the gold's value."""
        left, right = read_number(answer), read_number(gold)
        if left is not None and right is not None:
            return left == right
        return self.config.kind != "number" and " ".join(answer.casefold().split()) == " ".join(gold.casefold().split())

    def readable(self, gold: str) -> bool:
        """Whether any answer could equal the gold."""
        return self.config.kind != "number" or read_number(gold) is not None
