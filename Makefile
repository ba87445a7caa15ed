# make demo    ask the default model a question through the daemon (PROMPT="..." asks yours)
# make test    format, lint, types and tests, as CI runs them (under 10 minutes on 2 cores)
# make test-full   the same with the large grids whole; writes tests/FULL.md
# make lint    format, lint and types only
# make kernels rebuild the compiled CPU kernels in place, after a change of their sources
# make clean   remove what make made
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PROMPT ?= Why is the sky blue? Answer in two sentences.
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
KEY := $(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
STAMP := $(VENV)/.installed-$(KEY)
# Other versions of Triton that a supported torch is paired with, each in a folder of its own.
TRITONS := $(VENV)/triton-3.6.0

.PHONY: help venv demo model fresh lint test test-full kernels clean

help:
	@sed -n 's/^# make/make/p' Makefile

venv: $(STAMP)

# One install per content of pyproject.toml and constraints.txt; without changes no network is used.
$(STAMP):
	@python=; for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "make: no Python 3.11 or newer found; install one or give PYTHON=..." >&2; exit 1; fi; \
	[ -x $(BIN)/python ] || $$python -m venv $(VENV)
	@echo "installing into $(VENV), torch among it: some minutes the first time"
	$(BIN)/python -m pip install --quiet -e '.[all]' -c constraints.txt
	@rm -f $(VENV)/.installed-*
	@touch $@

model: $(STAMP)
	@$(BIN)/inferd pull smollm2-135m

demo: fresh
	@$(BIN)/python -m inferd.cli.demo "$$DEMO_PROMPT"
demo: export DEMO_PROMPT := $(value PROMPT)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

# Sources that changed since the install are compiled first; without a compiler torch serves.
fresh: $(STAMP)
	-@$(BIN)/python kernels/inferd_kernels/cpu/build.py --if-stale

test: lint model fresh
	$(BIN)/python -m pytest -n $(JOBS)

test-full: lint model fresh $(TRITONS)
	-$(BIN)/python -m pytest -n $(JOBS) -m "full or not full" --junitxml=bench-out/full.xml
	$(BIN)/python -m tests.full_report bench-out/full.xml > tests/FULL.md

$(VENV)/triton-%: $(STAMP)
	rm -rf $@ $@.part
	$(BIN)/python -m pip install --quiet --no-deps --target $@.part triton==$*
	mv $@.part $@

kernels: $(STAMP)
	$(BIN)/python kernels/inferd_kernels/cpu/build.py

clean:
	rm -rf $(VENV) build dist .ruff_cache .pytest_cache .hypothesis bench-out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
