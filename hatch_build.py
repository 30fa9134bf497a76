"""Metadata that depends on where a package is published. Hatchling runs it (`pyproject.toml`).

The environment variable KDMKIT_REPOSITORY is the address of the repository; the release workflow sets it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class PublishedMetadata(MetadataHookInterface):
    """The README with links that work on an index page, and the addresses of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        sys.path.insert(0, str(root / "scripts"))
        from index_readme import index_readme

        address = os.environ.get("KDMKIT_REPOSITORY", "").rstrip("/")
        package = (root / "src" / "kdmkit" / "__init__.py").read_text(encoding="utf-8")
        version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]
        text = index_readme((root / "README.md").read_text(encoding="utf-8"), address, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Changelog": f"{address}/blob/v{version}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
