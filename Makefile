# Everything is set up on first use: `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test setup lint unit study bench clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

setup: $(VENV)/.ready

demo: setup
	$(BIN)/blindcal simulate --generate 3000 --method blind --method latent --repeats 5

test: lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest

study: setup
	$(BIN)/python bench/coverage.py

bench: setup
	$(BIN)/python bench/accuracy.py
	$(BIN)/python bench/speed.py

clean:
	rm -rf $(VENV)
