"""Sphinx: `make docs` builds the site into `docs/_build/html`, offline and with warnings as errors."""

import os
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import inventories  # noqa: E402

import kdmkit  # noqa: E402

project, author = "kdmkit", "The kdmkit developers"
project_copyright = "The kdmkit developers, Apache License 2.0"
version = release = kdmkit.__version__

extensions = [
    "names",
    "repository",
    "results",
    "myst_nb",
    "sphinx.ext.autodoc",
    "docstrings",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "gallery/*.json"]
templates_path = ["_templates"]
default_role = "name"
nitpicky = True
nitpick_ignore_regex = [
    # Types in signatures: aliases, shapes of jaxtyping, and names of libraries that have no inventory here.
    ("py:(class|data|obj|mod)", r"(?!kdmkit\.).*"),
    # Classes of internal modules. Pages name public ones, `kdmkit.KDM` or `kdmkit.nn.MLP`.
    ("py:class", r"kdmkit\.\w+\.\w+\..*"),
]

# ---- pages
os.environ.setdefault(
    "PYTHONWARNINGS", "ignore:IProgress not found"
)  # in notebooks: tqdm asks for ipywidgets
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["config.cache"]

# ---- reference
autosummary_generate = True
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = True
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_preprocess_types = False
python_use_unqualified_type_names = True
toc_object_entries = False
add_module_names = False

# ---- other projects: their names as far as these pages use them
intersphinx_mapping = inventories.mapping(DOCS / "inventories", Path(tempfile.mkdtemp()))
intersphinx_disabled_reftypes = ["std:doc"]

# ---- examples
sphinx_gallery_conf = {
    "examples_dirs": str(DOCS.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "reset_argv": "gallery_arguments.reset_argv",
    "plot_gallery": True,
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "write_computation_times": False,
}

# ---- looks
html_theme = "pydata_sphinx_theme"
html_title = "kdmkit"
html_static_path = ["_static"]
html_css_files = ["kdmkit.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "kdmkit"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {name: [] for name in ("index", "start", "concepts")}
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)\b"]  # addresses of the reader's own server
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]  # scripts make the anchors there
