# make demo   a first look: train and score a small model with both classifiers on generated scenes
# make test   a virtual environment with pinned packages, then everything that CI runs
# make browser   a Chromium for the tests of web pages, which are skipped where there is none
# Every target sets up what it needs; nothing has to be installed before but Python >= 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes that run tests, each with one thread.
WORKERS ?= 2
# Of `make test-minimum`: what touches the packages whose versions differ. Old ones warn, which is no error there.
# Its extra is all that the tests need but export, which asks for a later torch; MINIMUM=test takes export too.
MINIMUM ?= test-minimum
# Architectures that the lowest transformers does not have.
MINIMUM_WITHOUT ?= Sapiens2 or Tipsv2 or EomtDinov3 or RfDetr or Videomt
MINIMUM_TESTS ?= tests/functional tests/ops tests/kernels tests/models tests/adapters tests/data tests/engine \
  tests/runtime tests/recipes tests/reports tests/cli tests/app tests/test_*.py
# torch is resolved together with what depends on it; the pinned list holds for the build's own environment too.
SETUP := $(VENV)/.installed

# The documentation site has a small environment of its own: it reads the sources and needs no torch.
DOCS := .venv-docs

N ?= 1500
KILLS ?= 50
SEED ?= 0

.PHONY: help demo test test-all test-minimum lint types layers package tests fuzz chaos audit browser gpu bench docs tables notebook pictures format clean
help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned packages need Python >= 3.11; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check torch -e '.[dev]'
	$(BIN)/python -m cacseg._torchvision
	touch $@

demo: $(SETUP)  ## the same small model with both classifiers, on generated scenes
	$(BIN)/cacseg demo

test:  ## everything CI runs: what takes one core side by side, then the tests
	$(MAKE) --jobs=$(WORKERS) lint types layers package docs
	$(MAKE) tests

lint: $(SETUP)  ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(SETUP)  ## mypy, strict
	$(BIN)/mypy

layers: $(SETUP)  ## the direction of imports
	$(BIN)/lint-imports

package: $(SETUP)  ## build sdist and wheel, install the wheel and what it needs into an empty environment, use it there
	OMP_NUM_THREADS=1 $(BIN)/python tools/package.py --empty -c constraints.txt

tests: $(SETUP)  ## the fast tests, the commands of the pages that take long, the maths once more with shapes checked at run time
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal -m commands tests/test_docs_commands.py
	$(BIN)/pytest -q tests/functional -k 'not refused' --jaxtyping-packages=cacseg.functional,beartype.beartype

test-all: $(SETUP)  ## the slow tests too: the better part of an hour on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not gpu'

fuzz: $(SETUP)  ## N damaged files through the functions of the commands: make fuzz N=10000 SEED=1, or REPEAT=1/zip/7
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign.fuzz $(if $(REPEAT),--repeat $(REPEAT),--loads $(N) --seed $(SEED)) $(FUZZ)

chaos: $(SETUP)  ## kill -9, full disks and a killed rank, compared with what was left alone: make chaos KILLS=50 SEED=1
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign.chaos --kills $(KILLS) --seed $(SEED) $(CHAOS)

audit: $(SETUP)  ## ask PyPI for known weaknesses of every installed package
	$(BIN)/python tools/audit.py

test-minimum:  ## tests with the lowest versions that pyproject.toml allows, in an environment of their own
	$(PYTHON) -m venv --clear .venv-minimum
	.venv-minimum/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-minimum/bin/uv pip install --quiet --python .venv-minimum/bin/python --resolution lowest-direct -e '.[$(MINIMUM)]'
	PYTEST_ADDOPTS='-o filterwarnings=default' OMP_NUM_THREADS=1 \
	  .venv-minimum/bin/python -m pytest -n $(WORKERS) --dist worksteal \
	  -k 'not ($(MINIMUM_WITHOUT))' $(MINIMUM_TESTS)

browser:  ## a Chromium for the tests of web pages, by apt-get (as root on Debian)
	@for name in "$$CACSEG_BROWSER" chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v "$$name" > /dev/null; then echo "the tests use $$(command -v "$$name")"; exit 0; fi; \
	done; \
	if command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; \
	else \
	  echo "On Debian run 'make browser' as root. Elsewhere install Chromium or Chrome and name it with CACSEG_BROWSER=PATH,"; \
	  echo "or take Playwright's: $(BIN)/playwright install --with-deps chromium"; \
	  exit 1; \
	fi

gpu: $(SETUP)  ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu

bench: $(SETUP)  ## time and memory of classifier and loss against the plain ones
	$(BIN)/cacseg bench loss --device cpu --batch 2

$(DOCS)/.installed: Makefile constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	PIP_CONSTRAINT=constraints.txt $(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  mkdocs mkdocs-material 'mkdocstrings[python]' ruff typer rich
	touch $@

docs: $(DOCS)/.installed  ## the documentation site, in site/: open site/index.html
	PYTHONPATH=src $(DOCS)/bin/python tools/site_pages.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@! grep -rnE '<(script|img|iframe)[^>]* src="?(https?:)?//|<link[^>]* href="?(https?:)?//' site --include='*.html'  # no network
	@echo "open site/index.html"

tables: $(SETUP)  ## write the measured tables of README and docs anew
	$(BIN)/python tools/tables.py

notebook: $(SETUP)  ## run examples/quickstart.ipynb anew and keep what it shows
	OMP_NUM_THREADS=1 $(BIN)/jupyter execute --inplace examples/quickstart.ipynb

pictures: $(SETUP)  ## make the pictures of README and docs anew: docs/report.md says of which runs
	$(BIN)/python tools/pictures.py $(REPORTED) $(COMPARISON) $(RUN) --data $(DATA)

format: $(SETUP)  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and the caches
	rm -rf $(VENV) $(DOCS) .venv-minimum dist site .pytest_cache .mypy_cache .ruff_cache
