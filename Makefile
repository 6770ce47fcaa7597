# `make demo` and `make test` need nothing but Python 3.11+ and make; both begin with `make setup`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Touched when the environment is complete, so that a second run is quick.
READY := $(VENV)/.ready
# What users combine svoo with and only tests need; apart, because one of them prints at every import of diffusers.
COMPANY := $(CURDIR)/$(VENV)/company

.PHONY: help setup demo test test-gpu test-diffusers lint benchmark clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## Create .venv and install the package with pinned constraints

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "svoo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..." >&2; exit 2; }
	@echo "Setting up $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup ## Run the main job and show the result
	@$(RUN) -m svoo demo --out out/demo

test: setup lint $(COMPANY)/.ready ## Lint, type-check and test
	@PYTHONPATH=$(COMPANY) $(RUN) -m pytest

$(COMPANY)/.ready: constraints.txt | setup
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(COMPANY) --constraint constraints.txt torchao cache-dit
	@touch $@

test-gpu: setup ## Test and time the GPU kernels on this machine's CUDA device
	@$(RUN) -m pytest -m gpu -n 0 -rs -W default

test-diffusers: setup ## Run diffusers' own tests without svoo and with it (DIFFUSERS_TESTS=path/to/diffusers/tests)
	@test -n "$(DIFFUSERS_TESTS)" || { echo "Set DIFFUSERS_TESTS to the folder tests of a checkout of diffusers." >&2; exit 2; }
	@$(RUN) -m tools.diffusers_tests "$(DIFFUSERS_TESTS)"

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

benchmark: setup ## Time attention, clustering and interception against dense (keep the machine idle)
	@$(RUN) benchmarks/attention.py --out out/benchmarks
	@$(RUN) benchmarks/clustering.py --out out/benchmarks
	@$(RUN) benchmarks/intercept.py --out out/benchmarks

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
