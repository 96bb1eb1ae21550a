# make repro: set up, then run the pipeline.   make test: set up, then run the tests.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro test lint science setup setup-dev

setup:
	@PYTHON=$(PYTHON) scripts/install.sh
	@test -d .dvc || { test -d .git && dvc init --quiet || dvc init --quiet --no-scm; }

setup-dev:
	@PYTHON=$(PYTHON) scripts/install.sh dev
	@test -d .dvc || { test -d .git && dvc init --quiet || dvc init --quiet --no-scm; }

repro: setup
	@dvc repro
	@moat status

test: setup-dev
	@pytest

lint: setup-dev
	ruff check .
	ruff format --check .
	mypy

science: setup
	python -P -m moat.science
