"""A page to explore a fitted model: a local server that answers a browser. Needs the extra `explore`."""

from importlib.util import find_spec

if not all(map(find_spec, ("pydantic", "starlette", "uvicorn"))):
    raise ImportError("the page needs: pip install 'kdmkit[explore]'")

from kdmkit.explore.app import create_app
from kdmkit.explore.page_models import PageModel, example_models
from kdmkit.explore.serve import Server, show

__all__ = ["PageModel", "Server", "create_app", "example_models", "show"]

#: The name of `PageModel` in version 0.2.
Entry = PageModel
