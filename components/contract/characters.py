"""Characters that look different and mean the same: digits, minus signs, blanks, quotes; and end-of-turn tokens.

Used by the number reader, the comparison of texts and the formats. Deliberately not NFKC: that would turn "12½" into
"121/2" and "12²" into "122". Both functions are idempotent and linear.
"""

import re
import unicodedata

_END_TOKEN = re.compile(
    r"(?:<\|(?:im_end|endoftext|eot_id|eom_id|end_of_text|end_of_turn|end|eos|return|endofturn|end_of_sentence)\|>"
    r"|</s>|<eos>|<end_of_turn>|<turn\|>|<\|END_OF_TURN_TOKEN\|>|<｜end▁of▁sentence｜>|<\|EOT\|>|<EOT>|\[EOS\])\Z"
)
_LONGEST_END_TOKEN = 32
_MOST_END_TOKENS = 100

_MINUS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_REPLACED = {
    **dict.fromkeys(_MINUS, "-"),
    **dict.fromkeys("\u2018\u2019\u02bc\u2032\uff07", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys("\u066b", "."),
    **dict.fromkeys("\u066c", ","),
    **dict.fromkeys("\u066a\ufe6a", "%"),
    **dict.fromkeys("\ufe69", "$"),
    **dict.fromkeys("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\n"),
    "\u3002": ".",
    "\t": "\t",
    "\n": "\n",
}


class _Table(dict[int, str]):
    """A `str.translate` table that classifies each character once, when first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        replaced = _REPLACED.get(character)
        if replaced is None:
            category = unicodedata.category(character)
            if category == "Nd":
                replaced = str(unicodedata.decimal(character))
            elif category == "Zs":
                replaced = " "
            elif category == "Cf" or 0xFE00 <= code <= 0xFE0F:
                replaced = ""
            elif 0xFF01 <= code <= 0xFF5E:
                replaced = chr(code - 0xFEE0)
            else:
                replaced = character
        self[code] = replaced
        return replaced


_TABLE = _Table()


def plain_characters(text: str) -> str:
    """The text with one sign for each meaning.

    Args:
        text: any text.

    Returns:
        ASCII digits, "-" for every minus and short dash, " " for every blank, ASCII quotes, nothing for invisible
        characters; all else as it was.
    """
    return text if text.isascii() and "\r" not in text else text.translate(_TABLE)


def without_end_tokens(text: str) -> str:
    """The text without end-of-turn tokens, and the white space between them, at its end.

    A text that ends in more than 100 of them is left as it is.
    """
    kept = end = len(text)
    tokens = 0
    while end:
        if text[end - 1].isspace():
            end = len(text[:end].rstrip())
            continue
        if text[end - 1] not in ">]":
            break
        token = _END_TOKEN.search(text[max(0, end - _LONGEST_END_TOKEN) : end])
        if not token:
            break
        end -= token.end() - token.start()
        kept = end
        tokens += 1
        if tokens > _MOST_END_TOKENS:
            return text
    return text if kept == len(text) else text[:kept]
