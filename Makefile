# make demo      one MoE layer over 4 ranks on a text: make demo FILE=path
# make test      everything that can be tested without a GPU
# make test-emulated  part of it: the CUDA kernels on the CPU, against the host backend; DEEPEP_EMULATED=all for every case
# make cuda      the library with its CUDA kernels; fetches nvcc 13.0 if there is none
# make test-gpu  the CUDA backend against the host backend, on a machine with a GPU; target/gpu-tests is the program
# make test-gpu-sanitizers  its small cases under compute-sanitizer: races, barriers, bounds, uninitialised reads
# make bench     the host backend's numbers, as ratios measured in the same run
# make bench-gpu the CUDA backend's numbers, on a machine with GPUs, into RESULTS=tests/gpu/results; target/gpu-bench is the program
# make bench-report  tables in BENCHMARKS.md and SYNCHRONIZATION.md and a picture from RESULTS
# make gpu-all   all that needs GPUs, each part in its time: benchmark, tests, sanitizers; PARTS="numbered=150 tests=240" for some
# make install   PREFIX=/usr/local [DESTDIR=]
# Each target sets up what it needs: Debian packages by .ci/setup, Python packages in target/venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
# Wheels of the CUDA toolkit's compiler; they need no GPU.
NVCC_WHEELS := nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl nvidia-cuda-runtime
CUDA_VENV := target/cuda-venv

.PHONY: all build cuda test-gpu test-gpu-sanitizers target/gpu-tests target/gpu-tests-plain demo test test-emulated test-rust \
	test-python test-go bench bench-gpu gpu-all target/gpu-bench bench-report install lint clean setup

PREFIX ?= /usr/local
DESTDIR ?=
FILE ?= README.md
RESULTS ?= tests/gpu/results
VENV := target/venv

all: build

build: setup
	cargo build --release

cuda: setup
	@if [ -z "$${DEEPEP_NVCC:-}$${NVCC:-}" ] && ! command -v nvcc >/dev/null && [ ! -x "$${CUDA_HOME:-/nonexistent}/bin/nvcc" ]; then \
		$(MAKE) --no-print-directory $(CUDA_VENV)/ready; \
	fi
	cargo build --release --features cuda

# Built here, or brought from where it was built: the GPU machine needs no Rust then.
test-gpu:
	@command -v cargo >/dev/null && $(MAKE) --no-print-directory target/gpu-tests || test -x target/gpu-tests
	DEEPEP_GPU_TESTS_REQUIRED=1 CUDA_DEVICE_MAX_CONNECTIONS=32 target/gpu-tests --test-threads=1

test-gpu-sanitizers:
	@command -v cargo >/dev/null && $(MAKE) --no-print-directory target/gpu-tests target/gpu-tests-plain || \
		test -x target/gpu-tests -a -x target/gpu-tests-plain
	tests/gpu/sanitizers.sh target/gpu-tests target/gpu-tests-plain

# Stripped, since they travel.
GPU_TESTS = cargo test --no-run --release --features cuda --test gpu --message-format=json | \
	sed -n 's/.*"name":"gpu".*"executable":"\([^"]*\)".*/\1/p' | xargs -I{} strip -o $@ {}

target/gpu-tests: cuda
	$(GPU_TESTS)

target/gpu-tests-plain: cuda target/gpu-tests
	export NVCC_APPEND_FLAGS=-DEP_PLAIN_STORES; $(GPU_TESTS)

# The kernels as C++ and a driver that runs them: see tests/emulator. Of their own profile, so that they are in no other build.
EMULATED := target/emulated
EMULATED_NVCC = DEEPEP_NVCC=$(CURDIR)/tests/emulator/nvcc \
	NVCC_APPEND_FLAGS="-DEMULATOR=$$(cat tests/emulator/{nvcc,*.h,ptx/*} | cksum | cut -d' ' -f1)"

test-emulated: $(EMULATED)/libcuda.so.1
	$(EMULATED_NVCC) cargo test --no-run --profile emulated --features cuda --test gpu --message-format=json | \
		sed -n 's/.*"name":"gpu".*"executable":"\([^"]*\)".*/\1/p' | xargs -I{} cp --remove-destination {} $(EMULATED)/gpu-tests
	$(EMULATED_NVCC) cargo build --profile emulated --features cuda --example bench
	tests/emulator/bench.sh $(EMULATED)/examples/bench $(CURDIR)/$<
	tests/emulator/mutations.sh $(EMULATED)/gpu-tests $(CURDIR)/$<
	tests/emulator/test.sh $(EMULATED)/gpu-tests $(CURDIR)/$<

$(EMULATED)/libcuda.so.1: $(wildcard tests/emulator/*.cpp tests/emulator/*.h tests/emulator/driver/*) tests/emulator/build.sh | setup
	tests/emulator/build.sh $(CURDIR)/$@

$(CUDA_VENV)/ready:
	python3 -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(NVCC_WHEELS:%='%==13.0.*')
	touch $@

setup:
	@.ci/setup

demo: build
	cargo run --release --quiet --example moe -- $(FILE)

test: test-rust test-emulated test-python test-go
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

# As for the tests: the GPU machine needs no Rust.
bench-gpu:
	@command -v cargo >/dev/null && $(MAKE) --no-print-directory target/gpu-bench || test -x target/gpu-bench
	CUDA_DEVICE_MAX_CONNECTIONS=32 target/gpu-bench cuda --results $(RESULTS)

target/gpu-bench: cuda
	cargo build --release --features cuda --example bench
	strip -o $@ target/release/examples/bench

gpu-all:
	@command -v cargo >/dev/null && $(MAKE) --no-print-directory target/gpu-bench target/gpu-tests target/gpu-tests-plain || \
		test -x target/gpu-bench -a -x target/gpu-tests -a -x target/gpu-tests-plain
	tests/gpu/all.sh $(RESULTS) $(PARTS)

bench-report:
	$(if $(wildcard $(RESULTS)/*.json),,$(error there are no results in $(RESULTS)))
	cargo run --release --quiet --example bench -- cuda $(addprefix --from ,$(wildcard $(RESULTS)/*.json)) \
		--markdown BENCHMARKS.md --sync-markdown SYNCHRONIZATION.md --plot $(RESULTS)/cuda.png

install: build
	bindings/install.sh $(PREFIX) $(DESTDIR)

lint: build
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

clean:
	rm -rf target
