# make demo      one MoE layer over 4 ranks on a text: make demo FILE=path
# make test      everything that can be tested without a GPU
# make bench     the host backend's numbers, as ratios measured in the same run
# make install   PREFIX=/usr/local [DESTDIR=]
# Each target sets up what it needs: Debian packages by .ci/setup, Python packages in target/venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: all build demo test test-rust test-python test-go bench install lint clean setup

PREFIX ?= /usr/local
DESTDIR ?=
FILE ?= README.md
VENV := target/venv

all: build

build: setup
	cargo build --release

setup:
	@.ci/setup

demo: build
	cargo run --release --quiet --example moe -- $(FILE)

test: test-rust test-python test-go
	@echo "all tests passed"

test-rust: build
	cargo test

test-python: build $(VENV)/ready
	DEEPEP_LIBRARY=$(CURDIR)/target/release/libdeepep.so $(VENV)/bin/python -m pytest bindings/python -c bindings/python/pyproject.toml

test-go: build
	bindings/go/test.sh

$(VENV)/ready: bindings/python/requirements-test.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r bindings/python/requirements-test.txt
	touch $@

bench: build
	cargo run --release --quiet --example bench

install: build
	bindings/install.sh $(PREFIX) $(DESTDIR)

lint: build
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

clean:
	rm -rf target
