"""The lenient reading of an answer from any text: for measuring, never for reward. (First form; deepened next.)"""

import re
from collections.abc import Callable


def read_anywhere(text: str, is_placeholder: Callable[[str], bool]) -> str | None:
    r"""The last `\boxed{}`, else what follows "answer is", else the last number."""
    boxed = text.rfind("\\boxed{")
    if boxed >= 0:
        end = text.find("}", boxed)
        if end > 0 and not is_placeholder(text[boxed + 7 : end].strip()):
            return text[boxed + 7 : end].strip()
    said = text.lower().rfind("answer is")
    if said >= 0:
        rest = text[said + 9 :].lstrip(" :").split("\n")[0].strip()
        if rest and not is_placeholder(rest):
            return rest
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1] if numbers else None
