"""Three rewards as an introductory GRPO guide writes them; each looks right and can be fooled.

Loaded by path, as a person's own reward file is.
"""

import re


def _answer(text):
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def correctness(prompts, completions, answer, **kwargs):
    """Plain string equality."""
    texts = [completion[0]["content"] for completion in completions]
    return [2.0 if _answer(text) == gold else 0.0 for text, gold in zip(texts, answer, strict=True)]


def formatted(completions, **kwargs):
    """Both pairs of tags occur somewhere, in this order."""
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    texts = [completion[0]["content"] for completion in completions]
    return [1.0 if re.search(pattern, text, re.DOTALL) else 0.0 for text in texts]


def incremental(completions, **kwargs):
    """An eighth for each tag that occurs once, less a little for each character behind the last."""
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        score = 0.0
        for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>"):
            if text.count(tag) == 1:
                score += 0.125
        if "</answer>" in text:
            score -= 0.001 * len(text.split("</answer>")[-1].strip())
        scores.append(max(0.0, score))
    return scores
