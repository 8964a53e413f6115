# SPDX-License-Identifier: Apache-2.0
"""Score answers for evaluation, in the same way in all pin sets.

Answers of DAPO, AIME and sums are right if the recipes' reward (llm_rl.rewards) says so.

Answers of GSM8K and MATH-500 are scored here, ignoring everything up to the last </think>. The result of an answer is
what follows the last "####" (GSM8K only), else the content of the last \\boxed{}. Two results are equal if they are
exactly the same number, or the same text after LaTeX spellings are normalised.
"""

from __future__ import annotations

import re
from fractions import Fraction

from llm_rl import rewards

NUMBER = r"-?(?:\d+(?:\.\d*)?|\.\d+)"


def score(data_source: str, answer: str, truth: str) -> bool:
    """Whether `answer` gives the result `truth`.

    Raises ValueError if the data source is unknown, UserError if it needs verl and verl is not installed.
    """
    if rewards.of_math_dapo(data_source):
        return rewards.math_dapo(answer, truth)[0]
    text = answer.rpartition("</think>")[2]
    if data_source == "openai/gsm8k":
        given = _hashes(text) or _boxed(text)
    elif data_source == "HuggingFaceH4/MATH-500":
        given = _boxed(text)
    else:
        known = "openai/gsm8k, HuggingFaceH4/MATH-500, math, math_dapo and names that begin with aime"
        raise ValueError(f"no scorer for data_source {data_source!r}; known: {known}")
    return given is not None and equal(given, truth)


def _hashes(text: str) -> str | None:
    """The first number after the last ####; other words may surround it."""
    matches = re.findall(r"####[^\n\d-]*(-?[^\n\d-]*\d[\d,]*(?:\.\d+)?)", text)
    return re.sub(r"[^\d.,-]", "", matches[-1]) if matches else None


def _boxed(text: str) -> str | None:
    """The content of the last \\boxed{}, with nested braces; None if there is none, or it is not closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    start = text.index("{", start)
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[start + 1 : at]
    return None


def equal(one: str, other: str) -> bool:
    """Whether two results are the same."""
    one, other = normal(one), normal(other)
    if one == other:
        return bool(one)
    numbers = number(one), number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    parts = _parts(one), _parts(other)
    return len(parts[0]) == len(parts[1]) > 1 and (one[0], one[-1]) == (other[0], other[-1]) and all(map(equal, *parts))


def normal(text: str) -> str:
    """Normalise the LaTeX and typography of a result, without computing its value."""
    text = text.strip().replace("\u2212", "-").replace("\u2013", "-").replace("\u00d7", "\\times")
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}", _words, text)
    text = text.replace("{,}", ",").replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "")
    text = re.sub(r"\\[,;:! ]|\\q?quad\b|~", " ", text)
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\]]", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\^\{?\\circ\}?|\\degree|\u00b0", "", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = re.sub(r"^\s*[a-zA-Z]\s*=\s*", "", text)  # x = 5
    text = re.sub(r"(?<=\d),\s?(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<![\d.,(\[])(-?\d{1,3}(?:,\d{3})+)(?![\d,)\]])", lambda m: m[1].replace(",", ""), text)
    return re.sub(r"\s+", "", text).strip("*").rstrip(".:").strip("*")


def _words(match: re.Match) -> str:
    """Drop words after a number, which are its unit; keep other words, which are the result."""
    return match[1] if not re.search(r"[\d}]\s*$", match.string[: match.start()]) else " "


def number(text: str) -> Fraction | None:
    """The value of a normalised number: an integer, a decimal, a/b, \\frac{a}{b}, or an integer and a fraction."""
    if re.fullmatch(NUMBER, text):
        return Fraction(text)
    if match := re.fullmatch(rf"({NUMBER})/({NUMBER})", text):
        return _ratio(match[1], match[2])
    if match := re.fullmatch(rf"(-?)(\d*)\\frac\{{({NUMBER})\}}\{{({NUMBER})\}}", text):
        value = _ratio(match[3], match[4])
        if value is None or (match[2] and value < 0):
            return None
        return (Fraction(match[2] or 0) + value) * (-1 if match[1] else 1)
    return None


def _ratio(top: str, bottom: str) -> Fraction | None:
    return Fraction(top) / Fraction(bottom) if Fraction(bottom) else None


def _parts(text: str) -> list[str]:
    """The elements of a tuple, interval or list, separated by commas outside brackets."""
    if len(text) > 2 and text[0] in "([{" and text[-1] in ")]}":
        text = text[1:-1]
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
