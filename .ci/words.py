"""Counts the words people read and fails where there are too many: python .ci/words.py

README.md            under 600 words
docs/*.md            under 20,000 words in all
README, docs, CONTRIBUTING, CHANGELOG: no sentence above 35 words

Tables, code blocks and comments are not counted; headings count as words, but not as sentences.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README_WORDS, DOCS_WORDS, SENTENCE_WORDS = 600, 20_000, 35
NOT_TEXT = re.compile(r"```.*?```|<!--.*?-->|^\|[^\n]*$", re.S | re.M)
HEADINGS = re.compile(r"^#[^\n]*$", re.M)
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n- ")


def word_count(text: str) -> int:
    """Words outside tables, code blocks and comments."""
    return len(NOT_TEXT.sub("", text).split())


def long_sentences(text: str) -> list[str]:
    """Sentences with more than 35 words."""
    parts = SENTENCE_END.split(HEADINGS.sub("", NOT_TEXT.sub("", text)))
    return [" ".join(part.split()) for part in parts if len(part.split()) > SENTENCE_WORDS]


def problems(root: Path = ROOT) -> list[str]:
    """What is too long, one line each."""
    readme, docs = root / "README.md", sorted((root / "docs").glob("*.md"))
    found = []
    if (words := word_count(readme.read_text())) >= README_WORDS:
        found.append(f"README.md has {words} words; it must have fewer than {README_WORDS}")
    if (words := sum(word_count(page.read_text()) for page in docs)) >= DOCS_WORDS:
        found.append(f"docs/ has {words:,} words; it must have fewer than {DOCS_WORDS:,}")
    for page in (readme, *docs, root / "CONTRIBUTING.md", root / "CHANGELOG.md"):
        for sentence in long_sentences(page.read_text()):
            found.append(f"{page.relative_to(root)}: a sentence of {len(sentence.split())} words: {sentence}")
    return found


if __name__ == "__main__":
    if found := problems():
        sys.exit("\n".join(found))
