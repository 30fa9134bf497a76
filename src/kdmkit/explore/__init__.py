"""A page to explore a fitted model: a local server that answers a browser. Needs the extra `explore`."""

try:
    import pydantic  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError("the page needs: pip install 'kdmkit[explore]'") from error

from kdmkit.explore.app import create_app
from kdmkit.explore.examples import example_models
from kdmkit.explore.serve import Server, show

__all__ = ["Server", "create_app", "example_models", "show"]
