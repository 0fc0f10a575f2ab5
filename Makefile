# make demo     train a small model on cpu and on accel, and compare       make lint     formats, style, types
# make test     all tests; TESTS=tests/test_x.py ARGS="-k name" for some    make format   apply the formats
# make setup    only what these share: .venv with the pinned set, and the extension, built and installed in place
# make clean    remove what was built; .venv stays                         make distclean   remove .venv, too
#
# Each step leaves a stamp in .venv, so that a second run does only what a changed file asks for.

PYTHON ?= python3
TESTS ?= tests
ARGS ?=
WORKERS ?= 2

VENV := .venv
RUN := $(VENV)/bin/python
CPP_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h')
# Folders are in the list, too: their time stamp changes when a file comes or goes.
SOURCES := CMakeLists.txt setup.py pyproject.toml $(shell find csrc)

.PHONY: demo test setup lint format clean distclean
.DELETE_ON_ERROR:

demo: setup
	$(RUN) -m torch_accel demo $(ARGS)

# One thread per operator in each worker: the workers share the cores.
test: setup
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(TESTS) -n $(WORKERS) -q $(ARGS)

setup: $(VENV)/.built $(VENV)/.installed

lint: $(VENV)/.tools
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)
	$(RUN) -m mypy

format: $(VENV)/.tools
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	$(VENV)/bin/clang-format -i $(CPP_FILES)

$(VENV)/.tools: requirements-dev.txt requirements-plugins.txt
	@command -v '$(PYTHON)' >/dev/null || { echo "make: expected a program $(PYTHON), got none" \
	  "(install Python 3.11 or newer, or name one: make PYTHON=python3.12)" >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: expected Python 3.11 or newer," \
	  "got $$('$(PYTHON)' --version) (name a newer one: make PYTHON=python3.12)" >&2; exit 1; }
	@'$(PYTHON)' -m venv $(VENV) || { echo "make: expected '$(PYTHON) -m venv' to make $(VENV), got the error above" \
	  "(on Debian and Ubuntu: apt-get install python3-venv python3-dev)" >&2; exit 1; }
	$(RUN) -m pip install -r requirements-dev.txt
	$(RUN) -m pip install --no-deps -r requirements-plugins.txt
	@touch $@

# Not through pip, which hides CMake's progress and takes seconds longer.
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	@command -v "$${CXX:-g++}" >/dev/null || { echo "make: expected the C++ compiler $${CXX:-g++}, got none" \
	  "(on Debian and Ubuntu: apt-get install g++)" >&2; exit 1; }
	$(RUN) setup.py -q build_ext --inplace
	@touch $@

# The editable install registers the entry point by which `import torch` finds the device. The build above is reused.
$(VENV)/.installed: $(VENV)/.tools setup.py pyproject.toml | $(VENV)/.built
	$(RUN) -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

clean:
	rm -rf build dist out *.egg-info torch_accel/_C*.so torch_accel/_core_test*.so torch_accel/_build_info.py torch_accel/include
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/.built $(VENV)/.installed
	find torch_accel tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
