# `make demo` and `make test` need nothing but Python 3.11+ and make; both begin with `make setup`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Touched when the environment is complete, so that a second run is quick.
READY := $(VENV)/.ready
# What users combine svoo with and only tests need; apart, because one of them prints at every import of diffusers.
COMPANY := $(CURDIR)/$(VENV)/company
# The packages that build the site and the wheel; `make demo` does without.
RELEASE := $(VENV)/.release-ready
# Held-out prompts that nothing was chosen on, and the modes that are shown everywhere.
FRONTIER := $(RUN) benchmarks/frontier.py --out docs/benchmarks --held-out
# One change each to default mode: labels, counts, groups, what is dense.
CHOICES := --only default --only "co-clusters" --only "labels every 2" --only "labels every 4" --only "branches apart" --only "no groups" \
	--only "first layer dense" --only "first step dense" --only "one tolerance for all steps" --only "fineness 2" --only "fineness 2.5" --only "fineness 5"
MODES := --only paper --only "mean terms" --only default

.PHONY: help setup demo test test-gpu test-triton test-diffusers sanitize lint benchmark docs wheel test-comfyui figures clean

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

test: setup lint $(COMPANY)/.ready $(RELEASE) ## Lint, type-check and test, the site and the wheel too
	@PYTHONPATH=$(COMPANY) $(RUN) -m pytest

$(COMPANY)/.ready: constraints.txt | setup
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(COMPANY) --constraint constraints.txt torchao cache-dit
	@touch $@

$(RELEASE): pyproject.toml constraints.txt | setup
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs,release]'
	@touch $@

docs: $(RELEASE) ## Build the documentation site into out/site, without a network
	@$(RUN) -m tools.docs
	@echo "Open out/site/index.html"

wheel: $(RELEASE) ## Build the wheel, install it into an empty environment and make a small video (75 s of CPU, 1.2 GB)
	@$(RUN) -m tools.wheel out/wheel

test-gpu: setup ## Test and time the GPU kernels on this machine's CUDA device
	@$(RUN) -m pytest -m gpu -n 0 -rs -W default

test-triton: setup ## Compile and test the GPU kernels with the newest Triton, which torch does not take yet; no GPU needed
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(CURDIR)/$(VENV)/newest-triton triton
	@PYTHONPATH=$(CURDIR)/$(VENV)/newest-triton $(RUN) -m pytest tests/kernels/triton tests/tools/test_kernel_report.py -k "not the_docs_show"

test-diffusers: setup ## Run diffusers' own tests without svoo and with it (DIFFUSERS_TESTS=path/to/diffusers/tests)
	@test -n "$(DIFFUSERS_TESTS)" || { echo "Set DIFFUSERS_TESTS to the folder tests of a checkout of diffusers." >&2; exit 2; }
	@$(RUN) -m tools.diffusers_tests "$(DIFFUSERS_TESTS)"

sanitize: setup ## Test the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer (minutes; needs GCC; SANITIZE_TESTS=...)
	@$(RUN) -m tools.sanitize $(SANITIZE_TESTS)

test-comfyui: setup ## Run the node pack in a real ComfyUI (COMFYUI_PATH=path/to/ComfyUI, its environment in or beside it)
	@test -n "$(COMFYUI_PATH)" || { echo "Set COMFYUI_PATH to a checkout of ComfyUI." >&2; exit 2; }
	@$(RUN) -m tools.comfyui.check "$(COMFYUI_PATH)" $(if $(COMFYUI_PYTHON),--python "$(COMFYUI_PYTHON)")

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

benchmark: setup ## Time attention, clustering and interception against dense (keep the machine idle)
	@$(RUN) benchmarks/attention.py --out out/benchmarks
	@$(RUN) benchmarks/clustering.py --out out/benchmarks
	@$(RUN) benchmarks/intercept.py --out out/benchmarks

figures: setup ## Make every figure of README and docs again: about ten hours on two idle cores; goes on where it stopped
	@$(RUN) -m svoo weights lpips --quiet
	@$(RUN) -m svoo weights scores --quiet
	@$(RUN) -m svoo study all --out docs/report
	@$(FRONTIER) --name far_field $(MODES) --only fast --only careful --only "bf16 products"
	@$(FRONTIER) --name far-2340 $(MODES) --only fast --only careful --height 80 --width 144
	@$(FRONTIER) --name choices $(CHOICES) --height 80 --width 144
	@$(FRONTIER) --name labels-7488 --only default --only "co-clusters" --only "fineness 5"
	@$(FRONTIER) --name steps8 $(MODES) --steps 8
	@$(FRONTIER) --name steps4 $(MODES) --steps 4
	@$(FRONTIER) --name far_field-avx2 --only default --instructions avx2
	@$(FRONTIER) --name size780 --only default --height 48 --width 80
	@$(FRONTIER) --name size14400 --only default --frames 97
	@$(RUN) benchmarks/frontier_pages.py
	@$(RUN) benchmarks/variants.py --out docs/benchmarks --page docs/frontier.md
	@$(RUN) benchmarks/error_estimate.py --out docs/benchmarks --page docs/frontier.md
	@$(RUN) benchmarks/methods.py --out docs/benchmarks --page docs/methods.md --few
	@$(RUN) benchmarks/methods.py --out docs/benchmarks --page docs/methods.md --few --frames 97 --warm-up 0 --no-fidelity
	@$(RUN) benchmarks/methods.py --out docs/benchmarks --page docs/methods.md --height 80 --width 144
	@$(RUN) benchmarks/methods.py --out docs/benchmarks --page docs/methods.md --height 80 --width 144 --warm-up 0 --density 0.15 --density 0.3
	@$(RUN) benchmarks/methods.py --out docs/benchmarks --page docs/methods.md --height 80 --width 144 --warm-up 0 --prompts 2 --compensate mean
	@$(RUN) benchmarks/planning.py --out docs/benchmarks
	@$(RUN) benchmarks/attention.py --out docs/benchmarks --repeats 3
	@$(RUN) benchmarks/kernel_pages.py
	@$(RUN) benchmarks/clustering.py --out docs/benchmarks
	@$(RUN) benchmarks/intercept.py --out docs/benchmarks
	@$(RUN) benchmarks/profiling.py --out docs/benchmarks
	@$(RUN) benchmarks/mini_prompts.py --out docs/benchmarks --page docs/mini.md --method svoo --straight 12 --other 16 --two 36 --image 12
	@$(RUN) benchmarks/estimate.py --out docs/benchmarks

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
