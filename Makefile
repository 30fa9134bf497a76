PYTHON ?= python3
PYTEST_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.kdmkit-stamp
BENCH_STAMP := .venv/.kdmkit-bench-stamp

.DEFAULT_GOAL := help
.PHONY: help setup test lint format demo bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned development set

test: lint  ## linters, types, import contracts and all tests (PYTEST_ARGS=... goes to pytest)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(STAMP)  ## linters, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## fix what ruff can fix, then format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: $(STAMP)  ## train one KDM on digits: metrics, samples and figures
	$(BIN)/python -m kdmkit.cli demo

bench: $(BENCH_STAMP)  ## time the reductions against other implementations
	$(BIN)/python -m kdmkit.cli bench

clean:  ## remove .venv, caches and build outputs
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,bench]'
	@touch $@
