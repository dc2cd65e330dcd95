"""Counts the words people read and fails where there are too many: python .ci/words.py

README.md            under 600 words, everything counted
docs/*.md            under 20,000 words in all, without code blocks and generated tables
README, docs, CONTRIBUTING, CHANGELOG: no sentence above 35 words outside tables and code
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README_WORDS, DOCS_WORDS, SENTENCE_WORDS = 600, 20_000, 35
CODE = re.compile(r"```.*?```", re.S)
GENERATED = re.compile(r"<!-- ([\w-]+)[^>]*-->.*?<!-- /\1 -->", re.S)
NOT_SENTENCES = re.compile(r"```.*?```|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$", re.S | re.M)
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n- ")


def docs_words(text: str) -> int:
    """Words outside code blocks and generated tables; the lines of a table are no words."""
    return len(re.findall(r"\S*\w\S*", GENERATED.sub("", CODE.sub("", text))))


def long_sentences(text: str) -> list[str]:
    """Sentences with more than 35 words."""
    sentences = (" ".join(part.split()) for part in SENTENCE_END.split(NOT_SENTENCES.sub("", text)))
    return [sentence for sentence in sentences if len(sentence.split()) > SENTENCE_WORDS]


def problems(root: Path = ROOT) -> list[str]:
    """What is too long, one line each."""
    readme, docs = root / "README.md", sorted((root / "docs").glob("*.md"))
    found = []
    if (words := len(readme.read_text().split())) >= README_WORDS:
        found.append(f"README.md has {words} words; it must have fewer than {README_WORDS}")
    if (words := sum(docs_words(page.read_text()) for page in docs)) >= DOCS_WORDS:
        found.append(f"docs/ has {words:,} words; it must have fewer than {DOCS_WORDS:,}")
    for page in (readme, *docs, root / "CONTRIBUTING.md", root / "CHANGELOG.md"):
        for sentence in long_sentences(page.read_text()):
            found.append(f"{page.relative_to(root)}: a sentence of {len(sentence.split())} words: {sentence}")
    return found


if __name__ == "__main__":
    if found := problems():
        sys.exit("\n".join(found))
