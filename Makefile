# Two commands for a newcomer: `make demo` and `make test`. Both create .venv on first use and are quick afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is outside the repository (real weights and images) is found through ZOFC_DATA; tests that need it skip without it.
export ZOFC_DATA

.PHONY: demo test lint types unit clean

demo: $(VENV)/.installed
	$(BIN)/zofc run

test: lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests scripts
	$(BIN)/ruff format --check src tests scripts

types: $(VENV)/.installed
	$(BIN)/mypy

# The report page is tested where there is a Chromium; its pictures are kept as build/report*.png.
unit: $(VENV)/.installed
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --cov --cov-report=term

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build dist
