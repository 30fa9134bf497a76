"""A server with a table and a classifier of digits, and Chromium to open its page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import kdmkit as kdm
from explore.conftest import parcels
from kdmkit.explore import Server
from kdmkit.explore.page_models import fit_digits

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HINT = "no Chromium found: `apt-get install chromium` gets one, or set KDMKIT_BROWSER to its path"


def chromium() -> str:
    """The path of a Chromium."""
    wanted = os.environ.get("KDMKIT_BROWSER")
    result = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, _NAMES)), None)
    if result is None:
        pytest.exit(_HINT, returncode=2)
    return str(result)


@pytest.fixture(scope="session")
def table() -> kdm.KDMTable:
    return kdm.KDMTable(n_components=6, max_epochs=20, batch_size=64, random_state=0).fit(parcels())


@pytest.fixture(scope="session")
def digits() -> Any:
    return fit_digits()


@pytest.fixture(scope="session")
def server(table: kdm.KDMTable, digits: Any) -> Iterator[Server]:
    server = Server({"parcels": table, "digits": digits}).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page whose console and requests are watched."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page, self.server = page, server
        self.messages: list[str] = []
        self.hosts: set[str | None] = set()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname))

    def open(self, model: str | None = None) -> Any:
        self.page.goto(self.server.url)
        self.page.wait_for_selector(".card")
        if model is not None:
            self.page.get_by_role("button", name=model, exact=True).click()
            self.page.wait_for_selector(".pad" if model == "digits" else ".card[data-column]")
        return self.page


@pytest.fixture
def watched(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A page of 1,280 × 900 pixels, or as the test says; it asks nobody but the server and has no errors."""
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}, **getattr(request, "param", {})}
    )
    watched = Watched(context.new_page(), server)
    yield watched
    context.close()
    assert watched.hosts <= {"127.0.0.1", ""}
    assert not [text for text in watched.messages if "status of 4" not in text]
