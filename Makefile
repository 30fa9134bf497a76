PYTHON ?= python3
PYTEST_ARGS ?=
DATA ?= data
TABLES_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.kdmkit-stamp
BENCH_STAMP := .venv/.kdmkit-bench-stamp
EXPORT_STAMP := .venv/.kdmkit-export-stamp
LIGHTNING_STAMP := .venv/.kdmkit-lightning-stamp
BROWSER_STAMP := .venv/.kdmkit-browser-stamp
TABLES_STAMP := .venv/.kdmkit-tables-stamp
DOCS_BIN := .venv-docs/bin
DOCS_STAMP := .venv-docs/.kdmkit-stamp
SPHINX := OMP_NUM_THREADS=1 $(DOCS_BIN)/sphinx-build --jobs auto --doctree-dir docs/_build/doctrees
OLDEST_BIN := .venv-oldest/bin
OLDEST_STAMP := .venv-oldest/.kdmkit-stamp
RAY_BIN := .venv-ray/bin
RAY_STAMP := .venv-ray/.kdmkit-stamp

# Tests run side by side, one per core: a thread each is enough.
PYTEST_OPTIONS := -n auto --dist worksteal $(PYTEST_ARGS)

# Annotations of shapes and types are checked while these tests run. The checks would double the time of fits.
CHECKED := $(addprefix tests/,core ops ops_triton kernels distributions metrics nn) \
	$(addprefix src/kdmkit/,_core ops kernels distributions)

# Both groups of tests, the checked ones first. Options such as -k may leave one of them empty (status 5).
define run-tests
	OMP_NUM_THREADS=1 $(1)/pytest $(PYTEST_OPTIONS) $(2) --jaxtyping-packages=kdmkit,typecheck.check $(CHECKED) || [ $$? -eq 5 ]
	OMP_NUM_THREADS=1 $(1)/pytest $(PYTEST_OPTIONS) $(2) $(3) $(addprefix --ignore=,$(CHECKED)) || [ $$? -eq 5 ]
endef

.DEFAULT_GOAL := help
.PHONY: help setup test test-full test-cpus test-oldest test-export test-lightning test-browser test-ray test-lab coverage lint format demo docs \
	linkcheck release-check bench bench-tables clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned development set, kdmkit and the laboratory

test: lint  ## linters, types, import contracts and all tests of kdmkit (PYTEST_ARGS=... goes to pytest)
	$(call run-tests,$(BIN))

test-full: lint  ## the same with the tests that take minutes
	$(call run-tests,$(BIN),--check-all -m "not browser and not ray")

test-cpus: $(STAMP)  ## numerical tests with the instructions of several CPUs, one and two threads, in random order
	BIN=$(BIN) bash scripts/test-cpus $(PYTEST_ARGS)

test-oldest: $(OLDEST_STAMP)  ## all tests with the oldest dependencies allowed, in .venv-oldest (several GB)
	$(call run-tests,$(OLDEST_BIN))

test-export: $(EXPORT_STAMP)  ## torch.export and ONNX, with the extra `export`
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_OPTIONS) tests/export

test-lightning: $(LIGHTNING_STAMP)  ## heads trained by Lightning, with the extra `lightning`
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 $(PYTEST_ARGS) tests/trainers

test-browser: $(BROWSER_STAMP)  ## the page of `kdmkit explore` in Chromium (KDMKIT_BROWSER=path, or found by name)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 $(PYTEST_ARGS) -m "browser and not slow" tests/browser

test-ray: $(RAY_STAMP)  ## fitted models on a local Ray with two workers, one of them killed, in .venv-ray
	OMP_NUM_THREADS=1 $(RAY_BIN)/pytest -n 0 $(PYTEST_ARGS) -m ray tests/ray_data
	OMP_NUM_THREADS=1 $(RAY_BIN)/pytest -n 0 $(PYTEST_ARGS) -m ray lab

test-lab: $(STAMP)  ## tests of the laboratory, lab/
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_OPTIONS) lab

coverage: $(STAMP)  ## all tests of kdmkit with coverage; fails below the floor in pyproject.toml
	$(BIN)/coverage erase
	$(call run-tests,$(BIN),--cov --cov-append --cov-report= --cov-fail-under=0,--ignore=tests/compiled)
	$(BIN)/coverage html --skip-covered
	$(BIN)/coverage report --skip-covered

lint: $(STAMP)  ## linters, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## fix what ruff can fix, then format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: $(STAMP)  ## train one KDM on digits: metrics, samples and figures
	$(BIN)/python -m kdmlab demo

docs: $(DOCS_STAMP)  ## the site in docs/_build/html, offline, with all tutorials and examples run (.venv-docs)
	$(SPHINX) --fail-on-warning --keep-going docs docs/_build/html

linkcheck: $(DOCS_STAMP)  ## links of the site to other sites; needs the network
	$(SPHINX) --builder linkcheck -D plot_gallery=0 -D nb_execution_mode=off docs docs/_build/linkcheck

release-check: $(STAMP)  ## build and check sdist and wheel, install the wheel in an empty environment, use it
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,release]'
	PYTHON=$(PYTHON) BIN=$(BIN) bash scripts/release-check

bench: $(BENCH_STAMP)  ## time the reductions against other implementations
	$(BIN)/python -m kdmlab bench

bench-tables: $(TABLES_STAMP)  ## models of mixed tables and their peers, hours (DATA=folder, TABLES_ARGS=...)
	$(BIN)/python -m kdmlab reproduce tables --data-dir $(DATA) $(TABLES_ARGS)

clean:  ## remove environments, caches and build outputs
	rm -rf .venv .venv-docs .venv-oldest .venv-ray build dist htmlcov .coverage*
	rm -rf docs/_build docs/api/generated docs/gallery docs/generated
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]' -e lab
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e . -e 'lab[bench]'
	@touch $@

$(EXPORT_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,export]'
	@touch $@

$(LIGHTNING_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,lightning]'
	@touch $@

$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,browser]'
	@touch $@

$(TABLES_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e . -e 'lab[tables]'
	@touch $@

$(DOCS_BIN)/python:
	$(PYTHON) -m venv .venv-docs

$(DOCS_STAMP): pyproject.toml constraints.txt | $(DOCS_BIN)/python
	$(DOCS_BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@

$(OLDEST_BIN)/python:
	$(PYTHON) -m venv .venv-oldest

$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt | $(OLDEST_BIN)/python
	$(OLDEST_BIN)/python -m pip install -c constraints-oldest.txt -e '.[test]'
	@touch $@

$(RAY_BIN)/python:
	$(PYTHON) -m venv .venv-ray

$(RAY_STAMP): pyproject.toml lab/pyproject.toml constraints.txt | $(RAY_BIN)/python
	$(RAY_BIN)/python -m pip install -c constraints.txt -e '.[test,ray]' -e 'lab[cluster]'
	@touch $@
