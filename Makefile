# Two commands for a newcomer: `make demo` and `make test`. Both create .venv on first use.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is outside the repository (real weights and images) is found through ZOFC_DATA; tests that need it skip without it.
export ZOFC_DATA

CODE := src device tests scripts benchmarks examples torture

.PHONY: help demo test lint types unit format docs wheel torture clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

demo: $(VENV)/.installed ## run the demonstration: ZO-FC, its first-order twin and ZO-Ridge, minutes on a CPU
	$(BIN)/zofc run

test: lint types unit ## linter, type checker and all tests

lint: $(VENV)/.installed ## linter and formatter, changing nothing
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(VENV)/.installed ## format the code and fix what the linter can fix
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(VENV)/.installed ## type checker
	$(BIN)/mypy

# The pages are tested where there is a Chromium; their pictures are kept as build/report*.png and build/teach*.png.
unit: $(VENV)/.installed ## all tests, with coverage
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist worksteal --cov --cov-report=term --durations=15

docs: $(VENV)/.installed ## build the documentation site: build/site/index.html
	$(BIN)/python scripts/site_pages.py build/docs
	$(BIN)/zensical build --strict --clean

# Goes on where it was stopped; `$(BIN)/python -m torture --help` lists its options, TORTURE="--minutes 10" passes them on.
torture: $(VENV)/.installed ## kills and hostile inputs, hours on one core: results/torture.json
	$(BIN)/python -m torture --out results/torture.json $(TORTURE)

wheel: $(VENV)/.installed ## build dist/zofc-VERSION-py3-none-any.whl
	$(BIN)/python -m build --wheel --no-isolation

$(VENV)/.installed: pyproject.toml device/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,docs]" --editable device
	touch $@

clean: ## remove .venv, runs and build outputs
	rm -rf $(VENV) runs build dist
