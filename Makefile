# SPDX-License-Identifier: Apache-2.0
# The one front door.  `make help` lists what it opens.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

C_FILES := $(wildcard csrc/*.[ch] tests/*/*.[ch])
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Wvla
CFLAGS_ANALYZE := -std=gnu17 -O2 -D_GNU_SOURCE -iquotecsrc $(WARNINGS) -fanalyzer -c -o /dev/null
CFLAGS_ASAN := -std=gnu17 -O1 -g -D_GNU_SOURCE -iquotecsrc -fsanitize=address,undefined -fno-sanitize-recover=all
ASAN_ENV := ASAN_OPTIONS=detect_leaks=0:abort_on_error=1

# Debian's names.  What tests need beyond a compiler: a 32-bit build, libseccomp to compare with, gdb
# and strace as programs that must go on working, and the tools of `make lint` and `make check`.
PACKAGES := build-essential musl-tools gcc-multilib libseccomp-dev python3-seccomp clang-format \
	gdb strace git curl util-linux man-db systemd
KERNEL_PACKAGES := qemu-system-x86
# The last line of a proof, and every row that is not ok; fails as the proof does.
SUMMARY := awk '/^ok / { next } { print; last = $$0 } END { exit last !~ / 0 failed/ }'
define need_packages
	missing=$$(for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $$missing >/dev/null; \
	else echo "note: not installed:" $$missing "- install them as root, or expect failures"; fi
endef

.DEFAULT_GOAL := help
.PHONY: help setup build selftest run test lint types asan bench bench-peers kernels check man dist clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install what is missing: Debian packages when root, .venv with everything in it

$(STAMP): pyproject.toml
	@$(call need_packages,$(PACKAGES))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call need_packages,python3-venv python3-dev); }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@for try in 1 2 3; do PYTHONWARNINGS=ignore $(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' && break; test $$try != 3 || exit 1; done
	@touch $@

build: $(STAMP) ## compile the C core for Python and as sandbox/confine, then prove it
	@$(PY) -W ignore -c 'from setuptools import setup; setup()' --quiet build_ext --inplace
	@$(if $(SKIP_SELFTEST),echo "SKIP_SELFTEST is set: the sandbox just built is NOT proved to confine anything",$(MAKE) --no-print-directory selftest)

selftest: ## confine for real and check every denial (needs Linux 6.2 with Landlock)
	@sandbox/confine --selftest | $(SUMMARY)
	@$(PY) -m sandbox selftest >/dev/null

run: setup build ## start a broker for you, run one confined command through it, show the result
	@$(VENV)/bin/host-broker quickstart

test: setup build ## every test but kernels and benchmarks; a missing kernel feature fails
	@REQUIRE_KERNEL=1 $(PY) -m pytest tests

lint: setup ## ruff, strict C warnings, gcc's analyzer, clang-format, import layers
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	@for file in $(wildcard csrc/*.c); do gcc $(CFLAGS_ANALYZE) $$file || exit; done
	@clang-format --dry-run --Werror $(C_FILES)
	@$(VENV)/bin/lint-imports --no-cache >/dev/null || $(VENV)/bin/lint-imports --no-cache

types: setup ## mypy --strict
	@$(VENV)/bin/mypy

asan: ## the core under AddressSanitizer and UBSan: the proof, and commands run each way
	@mkdir -p build/asan
	@gcc $(CFLAGS_ASAN) -o build/asan/confine csrc/*.c
	@$(ASAN_ENV) build/asan/confine --selftest | $(SUMMARY)
	@$(ASAN_ENV) build/asan/confine --baseline -- /bin/true
	@$(ASAN_ENV) build/asan/confine --baseline --rw /tmp --net none --supervise -- /bin/sh -c 'true & wait'
	@$(ASAN_ENV) build/asan/confine --baseline --print -- /bin/true >/dev/null
	@gcc $(CFLAGS_ASAN) -o build/asan/prove tests/proof/prove.c $(filter-out csrc/confine.c,$(wildcard csrc/*.c))
	@$(ASAN_ENV) build/asan/prove /tmp 0 -1 0 0 512 >/dev/null
	@$(ASAN_ENV) build/asan/prove /tmp 3 0 4 7 512 >/dev/null

bench: setup build ## the speed and memory table, as ratios in one run
	@$(PY) -m tests.bench

bench-peers: setup build ## the same commands through other sandboxes
	@$(PY) -m tests.bench.peers

kernels: setup build ## boot two other real kernels under qemu and prove or refuse there
	@$(call need_packages,$(KERNEL_PACKAGES))
	@tests/kernels/run

check: lint types test man ## all that a change must pass, but the other kernels
	@mkdir -p build/units && sed "s#=/usr/bin/#=$(CURDIR)/$(VENV)/bin/#" systemd/host-broker.service >build/units/host-broker.service
	@systemd-analyze verify --man=no build/units/host-broker.service

man: ## the man pages render without a warning
	@for page in docs/man/*.[1-8]; do LC_ALL=C.UTF-8 MANROFFSEQ= MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z $$page 2>&1 >/dev/null | tee /dev/stderr | grep -q . && exit 1; done; true

dist: setup ## wheel and sdist into dist/, the wheel built from the sdist; same sources, same bytes
	@rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 315532800) $(PY) -m build --quiet

clean: ## remove what was built (not .venv)
	@rm -rf build dist *.egg-info sandbox/confine sandbox/_native*.so
