"""Names in docstrings: `` `KDM` `` links to the page of the class, `` `x` `` is code.

Docstrings write everything in single backticks. The default role links a text that is a public name of
kdmkit, or a method of one, and sets every other text as code.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from types import ModuleType

from docutils import nodes
from public_packages import PACKAGES
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxRole

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@cache
def public_names() -> dict[str, str]:
    """The full path of every public name, by the paths that texts use for it; earlier packages win."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if isinstance(getattr(module, name), ModuleType):
                continue
            full = f"{package}.{name}"
            for short in (name, full, full.replace("kdmkit", "kdm", 1), full.removeprefix("kdmkit.")):
                found.setdefault(short, full)
    return found


def full_name(text: str) -> str | None:
    """The path of a public name or of a member of one; None where the text is neither."""
    if not _NAME.fullmatch(text):
        return None
    names = public_names()
    if text in names:
        return names[text]
    owner, _, member = text.rpartition(".")
    return f"{names[owner]}.{member}" if owner in names else None


class NameRole(SphinxRole):
    """A link to a public name, or code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        code = nodes.literal(self.rawtext, self.text, classes=["py"])
        context = self.env.ref_context
        target = full_name(self.text)
        if target is None:
            is_member = _NAME.fullmatch(self.text) and "." not in self.text and context.get("py:class")
            if not is_member:
                return [code], []
            target = f"{context.get('py:module')}.{context['py:class']}.{self.text}"
        link = pending_xref(
            self.rawtext,
            code,
            refdomain="py",
            reftype="obj",
            reftarget=target,
            refexplicit=True,
            refwarn=False,
            may_be_missing=True,
        )
        link["refdoc"] = self.env.docname
        return [link], []


def keep_code(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Node) -> nodes.Node | None:
    """A name of the default role that has no page stays code, without a warning."""
    return text if node.get("may_be_missing") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("name", NameRole())
    app.connect("missing-reference", keep_code, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
