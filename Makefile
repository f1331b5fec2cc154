# Everything is set up in .venv and .cache, inside the project; a machine needs Python >= 3.11, make and a C compiler (cc, or the one CC names).

PYTHON ?= python3
BIN := .venv/bin
export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-system check format site notebooks wheels clean

demo: .venv/usable  ## train a relative-position Transformer on the built-in corpus and show what it learned
	$(BIN)/relattn demo

test: .venv/installed  ## run the test suite, or a part: make test TESTS=tests/test_native.py
	$(BIN)/pytest --numprocesses auto --dist worksteal $(TESTS)

test-system: .venv/wheels  ## run the system tests, which take minutes each, or a part: make test-system TESTS=tests/system/test_kills.py
	$(BIN)/pytest --numprocesses auto --dist worksteal --durations 0 $(or $(TESTS),tests/system)

check: .venv/installed  ## format, lint, types
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy

format: .venv/installed  ## rewrite the code as `make check` wants it
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --fix --quiet

site: .venv/site  ## the documentation as pages, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

notebooks: .venv/notebooks  ## execute the notebooks and keep what they show; one that fails stays as it was
	$(BIN)/python notebooks/execute.py notebooks/*.ipynb

wheels: .venv/wheels  ## build the source distribution and, from it, the wheels for every machine, into dist/
	$(BIN)/python wheels.py

clean:  ## remove all that these commands made, runs excepted
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache build dist

.venv/usable: pyproject.toml constraints.txt hatch_build.py src/relattn/backends/native/levels.py $(wildcard src/relattn/backends/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "relattn needs Python >= 3.11; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip setuptools hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[translation]'
	touch $@

.venv/installed: .venv/usable  # what tests and checks need
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[translation,export,serve,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps espnet  # for one of its classes
	touch $@

.venv/site: .venv/installed  # what makes pages of the documentation
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mkdocs-material 'mkdocstrings[python]' nbconvert
	touch $@

.venv/notebooks: .venv/installed  # what executes notebooks
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ipykernel nbclient
	touch $@

.venv/wheels: .venv/installed  # a compiler for other machines, what reads off which systems a wheel runs on, an index's checks
	$(BIN)/python -m pip install --quiet --constraint constraints.txt auditwheel twine ziglang
	touch $@
