# make serve | demo | test | lint | fuzz | bench      (make help lists them)
PYTHON ?= python3
ARGS   ?=
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve demo pull test lint types unit fuzz fuzz-api soak bench clean
.DEFAULT_GOAL := help

help:  ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.installed  ## serve the embedded model on http://127.0.0.1:8000  (ARGS="--port 9000")
	@$(BIN)/headstart serve $(ARGS)

demo: $(VENV)/.installed  ## one cold and one warm request, and what made the difference
	@$(BIN)/headstart demo $(ARGS)

pull: $(VENV)/.installed  ## fetch the embedded model into the per-user cache
	@$(BIN)/headstart pull smollm2-135m

test: lint types unit  ## install, lint, type-check, run every test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Idle OpenMP threads spin by default; where tests, servers and engines share few cores that costs more than it saves.
unit: export GOMP_SPINCOUNT ?= 0
# Hundreds of processes are started, and two collect the tests: nobody need compile the same sources again.
unit: export PYTHONDONTWRITEBYTECODE :=
# Two processes, each with whole files; ARGS comes last and so can say otherwise: ARGS="-n 0 -k eviction --pdb".
# What both cover: pip install pytest-cov, then ARGS="--cov=headstart --cov-branch" (it joins their figures).
unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

fuzz: $(VENV)/.installed-dev  ## the cache core's state machines for ten minutes  (ARGS="--seed 4711")
	$(BIN)/python -m bench.fuzz --minutes 10 $(ARGS)

fuzz-api: $(VENV)/.installed-dev  ## 5,000 requests that schemathesis makes up  (ARGS="--seed 4711")
	$(BIN)/python -m bench.api_fuzz $(ARGS)

soak: $(VENV)/.installed  ## everything at once for ten minutes, the engine killed, and whether all is clean afterwards
	$(BIN)/python -m bench.soak --minutes 10 $(ARGS)

bench: $(VENV)/.installed  ## the figures of README.md and docs/benchmarks.md
	$(BIN)/python bench/first_token.py --write
	$(BIN)/python bench/caching_off.py --write
	$(BIN)/python bench/auto_budget.py --write
	$(BIN)/python bench/cache_core.py --write
	$(BIN)/python bench/eviction_cost.py --write
	$(BIN)/python bench/misses.py --write
	$(BIN)/python bench/overlap.py --write
	$(BIN)/python bench/memory.py --write

clean:  ## forget the virtual environment and all caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headstart needs Python 3.11 or newer; say which with: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed
