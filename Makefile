# Set-up is cached by the lock's hash; everything else runs in the environment it makes.
#
#   make demo   the whole pipeline, for real        make test      lint, types and the tests without a GPU
#   make up     the local stack alone               make test-all  the slow tests too
#   make down   stop it                             make setup     the Python environment alone
#   make status each part and its health            make lint      style alone; make format mends it
#   make doctor what is wrong on this machine       make faults    kills at a stack of its own, most of an hour
#   make bench  the overlap benchmark, on the stack make test-gpu  the tests that need a GPU

PYTHON ?= $(firstword $(shell command -v python3.11) python3)
BIN := .venv/bin
KILLS ?= 50
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo up down status doctor test test-all test-gpu faults lint format type imports bench

help:
	@sed -n '3,8s/^# *//p' Makefile

setup:
	@$(PYTHON) infra/set_up.py

# Its options by ARGS, such as ARGS=--auto-ports.
demo: setup
	@$(BIN)/driftline demo $(ARGS)

up down status doctor: setup
	@$(BIN)/driftline $@ $(ARGS)

test: setup lint type imports
	$(PYTEST) -m "not slow and not gpu"

test-all: setup lint type imports
	$(PYTEST) -m "not gpu"

# Kills at a stack of its own, for most of an hour; the last line is JSON.
faults: setup
	@$(BIN)/python -m tests.faults.kills --kills $(KILLS) --steps 40

# Needs torch and pytest alone; on a GPU machine it takes the Python it is given, not the locked environment.
GPU_PYTHON ?= python3
test-gpu:
	$(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini -p no:cacheprovider -m gpu tests/gpu

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: setup
	$(BIN)/basedpyright

imports: setup
	$(BIN)/lint-imports

# The overlap benchmark as a deployment; the stack must be up (`make up`).
bench: setup
	@eval "$$($(BIN)/driftline env)" && $(BIN)/prefect deployment run overlap-benchmark/local --watch
