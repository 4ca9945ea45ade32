"""The README for a package index: its relative links and pictures get the address of the source, at the version's tag.

The build runs it; see `[tool.hatch.metadata.hooks.custom]` in `pyproject.toml`.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")
"""Matches the target of a relative link or picture."""
PICTURES = (".svg", ".png")


def absolute(text: str, source: str, tag: str) -> str:
    """Return the README with absolute links to `source` at `tag`."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1].endswith(PICTURES) else "blob"
        return f"{source}/{kind}/{tag}/{found[1]}"

    return LINK.sub(link, text)


class IndexReadme(MetadataHookInterface):
    """Sets the dynamic field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = absolute(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
