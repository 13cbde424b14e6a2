# Everything happens in a virtual environment of the project's own; nothing else on the machine is changed.
VENV ?= .venv
BIN := $(VENV)/bin

# The first interpreter that this project supports, or the one given as PYTHON=...
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; \
	done)

.PHONY: install demo test test-full lint bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints/cpu.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON); the CPU build of the training stack takes a few minutes and 2 GB."
	$(PYTHON) -m venv $(VENV)
	# torch before anything that depends on it, or the CUDA build comes along.
	$(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt --editable '.[verl,dev]'
	@touch $@

demo: install
	$(BIN)/python examples/demo.py

lint: install
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint
	$(BIN)/python -m pytest -m "not full and not gpu"

test-full: lint
	$(BIN)/python -m pytest -m "not gpu" --timeout 1800

bench: install
	$(BIN)/python tests/bench/call_latency.py
	$(BIN)/python tests/bench/turn_cost.py

clean:
	rm -rf $(VENV) outputs
