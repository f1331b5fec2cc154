# Everything is installed in .venv and .cache, inside the project. The machine needs Python >= 3.11, make and a C compiler (cc, or $CC).

PYTHON ?= python3
BIN := .venv/bin
QUICK_TESTS := $(addprefix library/tests/test_,cache.py reference.py) tests/test_imports.py $(addprefix toolkit/tests/,test_config.py \
	documents/test_documents.py search text tokens translate/test_translator.py) --deselect tests/test_imports.py::test_import_loads_nothing_heavy
LEVEL_TESTS := library/tests/test_levels.py library/tests/integrations/test_int8.py library/tests/integrations/test_transformers.py toolkit/tests/engine toolkit/tests/translate toolkit/tests/formats
export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test quick test-c fuzz test-avx2 test-system mutants check format size site notebooks wheels clean

help:  ## list these commands
	@awk -F ':[^#]*## ' '/^[a-z0-9-]+:.*## / {printf "%-13s %s\n", $$1, $$2}' Makefile

test test-avx2: export PYTHONWARNDEFAULTENCODING := 1  # pyproject.toml makes it an error of relattn alone

demo: .venv/usable  ## train a Transformer with relative positions on the built-in corpus and show its translations
	$(BIN)/python -m research demo

test: .venv/installed  ## run the test suite, or a part: make test TESTS=library/tests/test_native.py
	$(BIN)/pytest --numprocesses auto --dist worksteal $(TESTS)

quick: .venv/installed  ## run the tests that start no process and train no model
	$(BIN)/pytest --numprocesses auto --dist worksteal $(QUICK_TESTS)

test-c:  ## run the C tests of the kernels, under sanitizers: needs cc alone
	sh kernels/tests/run.sh build/test-c

fuzz:  ## search for arguments that break the kernels, with clang's libFuzzer: FUZZ_SECONDS=60 per target
	sh kernels/tests/run.sh build/fuzz fuzz

test-avx2: .venv/installed  ## run the tests of what depends on the processor's level as on one with AVX2: it must have AVX2 itself
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 RELATTN_LEVEL=avx2 \
		$(BIN)/pytest --numprocesses auto --dist worksteal $(or $(TESTS),$(LEVEL_TESTS))

test-system: .venv/wheels  ## run the system tests, which take minutes each, or a part: make test-system TESTS=tests/system/test_kills.py
	$(BIN)/pytest --numprocesses auto --dist worksteal --durations 0 --timeout 1800 $(or $(TESTS),tests/system)

mutants: .venv/installed  ## apply N single slips in Python and C in C to copies of the tree, and list those that no test notices: make mutants N=40 C=8 SEED=1
	$(BIN)/python -m tools.mutants --python $(or $(N),40) --c $(or $(C),0) --seed $(or $(SEED),1)

check: .venv/installed  ## format, lint, types
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 library/src toolkit/src  # no function that Windows lacks

format: .venv/installed  ## format the code
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --fix --quiet

size: .venv/installed  ## print the size of the shipped Python by package, and the words of the documentation by page
	$(BIN)/python -m tools.size

site: .venv/site  ## build the documentation in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

notebooks: .venv/notebooks  ## execute the notebooks and keep their outputs; a notebook that fails is not changed
	$(BIN)/python notebooks/execute.py notebooks/*.ipynb

wheels: .venv/wheels  ## build the source distribution and the wheels for all systems, into dist/
	$(BIN)/python wheels.py

clean:  ## remove everything that these commands made, except runs
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache build dist

.venv/usable: $(wildcard *.toml */pyproject.toml */hatch_build.py kernels/*.* $(foreach part,simd attention engine,kernels/$(part)/*)) constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "relattn needs Python >= 3.11; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip setuptools hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable ./library --editable './toolkit[train]' matplotlib num2words
	touch $@

.venv/installed: .venv/usable  # what tests and checks need; both packages are installed, so their kernels are not compiled again
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'relattn-mt[export,files,serve,train]' --group dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps espnet  # one of its classes is tested against
	touch $@

.venv/site: .venv/installed  # packages that build the documentation
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mkdocs-material 'mkdocstrings[python]' nbconvert latex2mathml
	touch $@

.venv/notebooks: .venv/installed  # packages that execute notebooks
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ipykernel nbclient
	touch $@

.venv/wheels: .venv/installed  # a cross compiler, and tools that check wheels
	$(BIN)/python -m pip install --quiet --constraint constraints.txt auditwheel twine ziglang
	touch $@
