"""Finds dead links in the documents: files that are not there and headings that no longer exist.

Looks at README.md, the other Markdown files of the top level and docs/. Addresses on the network are not tried.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import unquote

PROJECT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def documents() -> list[Path]:
    return sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, written as GitHub writes them."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub("", path.read_text())):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        name = words.replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def dead(source: Path, link: str) -> str:
    """Why a link leads nowhere, or "" when it leads somewhere."""
    path, _, anchor = unquote(link).partition("#")
    target = (source.parent / path).resolve() if path else source
    if not target.is_relative_to(PROJECT):
        return "leads out of the project"
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "no such heading"
    return ""


def main() -> int:
    failures = links = 0
    for source in documents():
        for link in LINK.findall(CODE.sub("", FENCE.sub("", source.read_text()))):
            links += 1
            if not ELSEWHERE.match(link) and (reason := dead(source, link)):
                failures += 1
                print(f"{source.relative_to(PROJECT)}: {link}: {reason}")
    print(f"{links} links in {len(documents())} documents, {failures} dead")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
