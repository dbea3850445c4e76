# From a fresh clone, with Python 3.11 or newer, make and a package registry: `make test`.
# Everything a command needs is installed into .venv; nothing outside this folder is touched.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/setup.stamp
WHEEL_SITE := $(CURDIR)/build/wheel-site

# In the order in which `make test` runs them: what fails soonest comes first.
CHECKS := codegen proto style types layers wheel doctests tests

# Tools that want a cache in the home folder get one here: a home may be read-only.
export BUF_CACHE_DIR ?= $(CURDIR)/build/cache/buf
export MPLCONFIGDIR ?= $(CURDIR)/build/cache/matplotlib
unexport PYTHONPATH

.DELETE_ON_ERROR:
.PHONY: help setup setup-js test test-torch $(CHECKS:%=check-%) codegen baseline format wheel wheel-device demo long-all FORCE

help:
	@echo 'make setup       create .venv and install everything into it (PYTHON=python3.12 to choose)'
	@echo 'make setup-js    install what client/js needs, where Node.js is; its tests are skipped without'
	@echo 'make test        every check, in order; make check-NAME runs one of them:'
	@echo '                 $(CHECKS)'
	@echo 'make test-torch  the tests that need torch, which nothing else does'
	@echo 'make format      put code and schema into their one form'
	@echo 'make codegen     generate the bindings of proto/demur_proto/v1/*.proto'
	@echo 'make baseline    make the schema of today the one that must not break'
	@echo 'make wheel       the wheel of everything, into build/dist; wheel-device: of a device alone'
	@echo 'make demo        a simulation in several processes, with a picture, into runs/demo'
	@echo 'make bench-NAME  run benchmarks/bench_NAME.py (ARGS=... to pass options)'
	@echo 'make long-NAME   run the tests marked long whose name or file holds NAME; long-all: all'

# ---- setup -----------------------------------------------------------------------------------

setup: $(STAMP)
	@:

# The stamp names the folder it was made in: a .venv that was copied or moved here points elsewhere.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# pip is upgraded first: older ones do not know --group.
$(STAMP): pyproject.toml
	@$(BIN)/pip --version 2>/dev/null | grep -qF 'from $(CURDIR)/.venv/' || { \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	        echo "demur needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) -V 2>&1);" \
	            "name another with make setup PYTHON=python3.12" >&2; \
	        exit 1; \
	    }; \
	    echo 'setup: creating .venv'; \
	    $(PYTHON) -m venv --clear .venv; \
	}
	@echo 'setup: installing demur and its tools into .venv (minutes, the first time)'
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --editable '.[sim,postgres]' --group dev --group codegen
	@printf '%s\n' '$(CURDIR)' > $@

# Node.js is nobody's duty: without it, or without this, the tests of client/js are skipped.
setup-js:
	@command -v npm >/dev/null || { echo 'npm is not here: install Node.js 20 or newer, then again' >&2; exit 1; }
	@npm --prefix client/js ci --no-audit --no-fund --ignore-scripts --loglevel=error

# ---- checks ----------------------------------------------------------------------------------

# One after the other even under -j: they share two folders, and a reader wants one story.
test: setup
	@for check in $(CHECKS); do $(MAKE) --no-print-directory check-$$check || exit; done

# Torch is gigabytes, so nobody gets it unasked; without it these tests are skipped in `make test`.
test-torch: $(STAMP)
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
	    echo "torch is not here: $(BIN)/pip install --editable '.[torch]', then again" >&2; \
	    exit 1; \
	}
	@$(BIN)/pytest tests -k torch $(ARGS)

check-codegen: $(STAMP)
	@echo '== codegen: the committed bindings are what the schema generates'
	@.ci/codegen --check

check-proto: $(STAMP)
	@echo '== proto: the schema is in form, commented, and compatible with its baseline'
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code
	@.ci/baseline --check

check-style: $(STAMP)
	@echo '== style: ruff'
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check --diff

check-types: $(STAMP)
	@echo '== types: mypy --strict'
	@$(BIN)/mypy --strict --no-error-summary

check-layers: $(STAMP)
	@echo '== layers: imports only point down'
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }

check-wheel: wheel wheel-device
	@echo '== wheel: it holds the packages, their data, and nothing else'
	@report=$$($(BIN)/check-wheel-contents build/dist) || { echo "$$report"; exit 1; }
	@$(BIN)/python .ci/check_wheel.py build/dist/*.whl
	@$(BIN)/python .ci/check_wheel.py build/dist-device/*.whl

check-doctests: $(STAMP)
	@echo '== doctests: the four source roots'
	@$(BIN)/pytest proto client server sim

check-tests: wheel
	@echo '== tests: against the built wheel'
	@DEMUR_WHEEL_SITE='$(WHEEL_SITE)' PYTHONPATH='$(WHEEL_SITE)' $(BIN)/pytest tests \
	    -m 'not long and not alone' --numprocesses logical --dist loadfile
	@DEMUR_WHEEL_SITE='$(WHEEL_SITE)' PYTHONPATH='$(WHEEL_SITE)' $(BIN)/pytest tests \
	    -m 'alone and not long'

# Built anew each time (a second or two), so that no test ever runs against yesterday's code.
wheel: $(STAMP)
	@rm -rf build/dist '$(WHEEL_SITE)' && mkdir -p build
	@$(BIN)/python -m build --quiet --wheel --no-isolation --outdir build/dist >build/wheel.log 2>&1 \
	    || { cat build/wheel.log; exit 1; }
	@$(BIN)/python -m pip --no-cache-dir install --quiet --no-index --no-deps \
	    --target '$(WHEEL_SITE)' build/dist/*.whl

# A device alone, for machines on which every megabyte counts.
wheel-device: $(STAMP)
	@mkdir -p build
	@$(BIN)/python .ci/device_wheel.py build/dist-device >build/wheel-device.log 2>&1 \
	    || { cat build/wheel-device.log; exit 1; }

# ---- everything else -------------------------------------------------------------------------

codegen: $(STAMP)
	@.ci/codegen

baseline: $(STAMP)
	@.ci/baseline

format: $(STAMP)
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet
	@$(BIN)/buf format --write

demo: $(STAMP)
	@$(BIN)/demur simulate cdnow --fidelity processes --out runs/demo

bench-%: benchmarks/bench_%.py $(STAMP)
	@$(BIN)/python $< $(ARGS)

# NAME is a pytest keyword: `make long-audit` runs every test marked long with "audit" in its
# function, module or folder name. A NAME that selects nothing is an error.
long-%: $(STAMP)
	@$(BIN)/pytest tests -m long -k '$*' $(ARGS)

# By its folder, since every ledger has an "edge". DEMUR_EDGE_OUT=FOLDER has the tables written there as JSON.
long-edge: $(STAMP)
	@$(BIN)/pytest tests/edge -m long -rP $(ARGS)

long-all: $(STAMP)
	@$(BIN)/pytest tests -m long $(ARGS)
