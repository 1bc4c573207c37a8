"""What the documentation site (`make docs`) adds to the pages in docs/: an mkdocs hook.

- pages of the repository's root, such as ARCHITECTURE.md, and a list of the design decisions
- files of the repository that a page links to, such as examples, under source/
- llms.txt, and each page as Markdown beside its HTML, for language models

Links are written for readers of the repository, and are rewritten here for readers of the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FROM_ROOT = {  # page of the site: file of the repository
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
DECISIONS = "decisions/index.md"
PAGES = {ROOT / file: page for page, file in FROM_ROOT.items()} | {
    ROOT / "README.md": "index.md",
    DOCS / "decisions": DECISIONS,
}
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\(|src=\")(?![a-z]+:|#)([^)\"#\s]+)")
PROSE = re.compile(r"^(?![#<!|`>\-*\[ ])(?:.+\n?)+", re.MULTILINE)

_nav: list[Navigation] = []  # of this build


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, file in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text("utf-8")))
    files.append(File.generated(config, DECISIONS, content=decisions()))
    return files


def decisions() -> str:
    """Return a page that lists the design decisions."""
    lines = [
        "# Design decisions",
        "",
        "Each page states a problem, the chosen design, and the rejected alternatives.",
        "",
    ]
    for page in sorted((DOCS / "decisions").glob("0*.md")):
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that lead out of docs/, outside of code blocks."""
    uri = page.file.src_uri
    origin = ROOT / FROM_ROOT.get(uri, f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        target = (origin.parent / match[2]).resolve()
        return match[1] + os.path.relpath(place_of(target, config, files), Path(uri).parent)

    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in FENCE.split(markdown))


def place_of(target: Path, config: MkDocsConfig, files: Files) -> str:
    """Return where a file of the repository is on the site. A file that is no page is added under source/."""
    if target in PAGES:
        return PAGES[target]
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    place = f"source/{target.relative_to(ROOT).as_posix()}"
    if target.is_file() and files.get_file_from_path(place) is None:
        files.append(File.generated(config, place, abs_src_path=str(target)))
    return place


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    _nav[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt and the pages as Markdown: docs/howto/retries.md becomes howto/retries.md of the site."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section, page in pages_of(_nav[0].items):
        if section is not None:
            lines += ["", f"## {section}", ""]
        if page is not None:
            markdown = page.markdown or ""
            (site / page.file.src_uri).parent.mkdir(parents=True, exist_ok=True)
            (site / page.file.src_uri).write_text(markdown, "utf-8")
            lines.append(f"- [{page.title}]({page.file.src_uri}): {summary_of(markdown)}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def pages_of(items: list[StructureItem]) -> Iterator[tuple[str | None, Page | None]]:
    """Return the titles of sections and their pages, in the order of the navigation."""
    for item in items:
        if isinstance(item, Page):
            yield None, item
        elif isinstance(item, Section):
            yield item.title, None
            yield from pages_of(item.children)


def summary_of(markdown: str) -> str:
    """Return the first paragraph of a page, on one line and without links."""
    found = PROSE.search(markdown)
    text = " ".join(found[0].split()) if found else ""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
