"""The README as a package index shows it: an index knows no files of the repository.

    python scripts/index_readme.py dist/*    # fails where the description of a package has a relative link

`hatch_build.py` calls `index_readme` when a package is built.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")

WITHOUT_ADDRESS = "\nPages and result files that are named here are in the source distribution.\n"


def is_relative(target: str) -> bool:
    return "://" not in target and not target.startswith(("#", "mailto:"))


def relative_links(text: str) -> list[str]:
    """Targets of links and images outside of code that have no host."""
    return [link["target"] for link in _LINK.finditer(_CODE.sub("", text)) if is_relative(link["target"])]


def index_readme(text: str, address: str, version: str) -> str:
    """The text with links to the files of a release.

    Args:
        text: the README.
        address: of the repository, for example `https://github.com/owner/name`. Without one, links become
            plain text and images are left out.
        version: of the release; its tag is `v<version>`.
    """

    def turned(link: re.Match[str]) -> str:
        if not is_relative(link["target"]):
            return link[0]
        if not address:
            return "" if link["image"] else link["text"]
        kind = "raw" if link["image"] else "blob"
        target = f"{address.rstrip('/')}/{kind}/v{version}/{link['target']}"
        return f"{link['image']}[{link['text']}]({target})"

    parts = _CODE.split(text)
    made = "".join(part if _CODE.fullmatch(part) else _LINK.sub(turned, part) for part in parts)
    made = re.sub(r"\n{3,}", "\n\n", made)
    return made if address else made + WITHOUT_ADDRESS


def description(package: Path) -> str:
    """The long description in the metadata of a wheel or an sdist."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            text = archive.read(name).decode()
    else:
        with tarfile.open(package) as archive:
            name = min((name for name in archive.getnames() if name.endswith("/PKG-INFO")), key=len)
            member = archive.extractfile(name)
            assert member is not None
            text = member.read().decode()
    return text.partition("\n\n")[2]


def main(packages: list[str]) -> int:
    failed = False
    for package in packages:
        text = description(Path(package))
        links = relative_links(text)
        if links or not text.startswith("# kdmkit"):
            failed = True
            print(f"{package}: the description is empty or has relative links: {links}", file=sys.stderr)
    return int(failed or not packages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
