# Two commands matter: `make demo` and `make test`. Both set up all they need and may be run again.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := $(shell .ci/venv-path)
BIN := $(VENV)/bin
CODE := trtllm_hpc tests tools benchmarks setup.py

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z%-]*\):.*## /  make \1	/p' Makefile | expand -t 16

# Python keeps what it compiles: each job imports PyTorch.
.PHONY: demo demo-tour
demo demo-tour: export PYTHONDONTWRITEBYTECODE :=
demo: $(VENV)/.demo-ready ## from nothing to a model that answers, measured, on a Slurm cluster on this machine
	@.ci/demo $(BIN)
demo-tour: $(VENV)/.demo-ready ## the demo, then a second setting compared, and a server killed and explained
	@.ci/demo $(BIN) --tour

.PHONY: test
test: setup ## lint and every test, the real Slurm ones too
	@.ci/test $(BIN)

N := 20
.PHONY: test-unstable
test-unstable: setup ## chosen tests N times, half of them beside busy loops: N=20 TESTS='tests/FILE.py::TEST'
	@.ci/unstable $(BIN) $(N) $(TESTS)

test-%: setup ## the tests of one kind: test-slurm, test-triton, test-model, test-browser or test-thorough
	@.ci/test $(BIN) $*

TRIXIE ?= /var/tmp/trtllm-trixie
FAULTS_TRIXIE ?= /var/tmp/trtllm-trixie-faults
.PHONY: test-trixie
test-trixie: export PYTHON := $(BIN)/python
test-trixie: setup ## the tests with Slurm, and the faults, on Debian 13's Slurm 24.11: needs root, 2 GB and two hours
	tests/trixie/make.sh $(TRIXIE)
	TRTLLM_HPC_TEST_THOROUGH=1 tests/trixie/enter.sh $(TRIXIE) \
	  $(BIN)/pytest -q -n 2 --dist loadgroup -m slurm tests/slurm
	tests/trixie/enter.sh $(TRIXIE) $(BIN)/python -m benchmarks.faults --out $(FAULTS_TRIXIE)

# Four processes for two processors, since many tests wait. Each compiles every test unless that is kept.
.PHONY: unit
unit: export PYTHONDONTWRITEBYTECODE :=
unit: setup ## the fast tests only: no server, no Slurm, no model, no browser, no fuzzing
	$(BIN)/pytest -q -n 4 --dist worksteal \
	  -m 'not slurm and not triton and not model and not long and not browser and not thorough'

.PHONY: lint
lint: setup ## ruff, mypy --strict, import-linter, shellcheck
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	if command -v shellcheck >/dev/null; then shellcheck .ci/* tests/trixie/*; fi

PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
.PHONY: wheels
wheels: setup ## sdist and wheel in dist/, tried in an empty environment of each of PYTHONS, by version or path
	@.ci/wheels $(BIN) dist $(PYTHONS)

.PHONY: golden
golden: setup ## write the golden scripts and the JSON Schemas anew, for `git diff` to review
	$(BIN)/python -m tests.render.cases
	$(BIN)/python -m tools.generate

.PHONY: bench
bench: setup ## how fast the command line starts, beside `import click`
	$(BIN)/python benchmarks/cli_start.py

.PHONY: bench-load
bench-load: setup ## the load generator over gRPC beside perf_analyzer: needs a quiet machine for five minutes
	$(BIN)/python -m benchmarks.load_generator

.PHONY: bench-instrument
bench-instrument: setup ## the load generator over HTTP against a server of known times: needs a quiet machine
	$(BIN)/python -m benchmarks.instrument

.PHONY: bench-faults
bench-faults: setup ## faults of every kind, injected into runs on a real Slurm: needs root and half an hour
	$(BIN)/python -m benchmarks.faults

.PHONY: docs
docs: $(VENV)/.docs-ready ## the site, in build/site; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the site: build/site/index.html"

$(VENV)/.docs-ready: $(VENV)/.ready
	@.ci/setup $(VENV) docs
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready ## the virtual environment, with the pinned versions

$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV)
	@touch $@ $(VENV)/.demo-ready

# A part of it: without the packages that only tests and linters need.
$(VENV)/.demo-ready: setup.cfg pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV) mpi,reference,report
	@touch $@

.PHONY: clean
clean: ## remove the demo, the sandbox, the environment and what the tools cached
	if [ -x $(BIN)/trtllm-hpc ]; then $(BIN)/trtllm-hpc demo --remove; $(BIN)/trtllm-hpc sandbox down; fi
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
