# The front door. Every target works from a fresh checkout, as root or not; CMake does the work.
# Variables: WERROR=ON (warnings are errors), CUDA=AUTO|ON|OFF (AUTO: if there are nvcc and a GPU), DEPS=0 (leave
# packages alone), JOBS=n (processes that build or test; default: cores), ARGS=... (for bench and test-gpu)

WERROR ?= OFF
CUDA ?= AUTO
DEPS ?= 1
JOBS ?= $(shell nproc)
BUILD := build/release
export CCACHE_NOHASHDIR = 1
export CCACHE_BASEDIR = $(CURDIR)
export CTEST_PROGRESS_OUTPUT = 0

.DEFAULT_GOAL := help
.PHONY: help deps build program quickstart test test-gpu pack-gpu-tests test-sanitized soak bench bench-gpu package wheel deb try-packages format tidy asan tsan debug clean

help:  ## list the targets
	@echo "Ringmaster: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

deps:  ## install missing packages (DEPS=0: skip)
ifneq ($(DEPS),0)
	@scripts/install_deps.sh
endif

configure: deps
	@cmake --preset release -DRING_WERROR=$(WERROR) -DRING_CUDA=$(CUDA)
.PHONY: configure

build: configure  ## build everything into build/release
	@cmake --build --preset release -j $(JOBS)

program: configure  ## build only the program, build/release/ringmaster
	@cmake --build --preset release -j $(JOBS) --target ringmaster

quickstart: program  ## train a small language model from scratch and print a sample of its text
	@scripts/quickstart.sh

test: build  ## build and run every test
	@ctest --preset release -j $(JOBS)

test-gpu: build  ## build and run all tests that need one GPU; GPUS=2: all that need several, on two
	@scripts/gpu_tests.py run $(BUILD) --gpus $(or $(GPUS),1) $(ARGS)

pack-gpu-tests: build  ## pack the GPU tests into build/gpu_tests.tar.xz, for machines without a compiler (scripts/gpu_tests.py run PACKAGE)
	@scripts/gpu_tests.py pack --build $(BUILD)

bench: configure  ## measure every op (ARGS=: arguments of the benchmark)
	@cmake --build --preset release -j $(JOBS) --target bench
	@$(BUILD)/bench/programs/bench_op_cases $(ARGS)

bench-gpu: program  ## measure training steps of bench/shapes on this GPU, also with PyTorch (ARGS=: arguments of scripts/bench_gpu.sh)
	@scripts/bench_gpu.sh $(ARGS)

package: deps  ## build dist/ringmaster-VERSION-linux-ARCH.tar.gz, which runs on other machines without root
	@scripts/package.sh -DRING_CUDA=$(if $(filter ON,$(CUDA)),ON,OFF)

wheel: package  ## build dist/ringmaster-VERSION-py3-none-manylinux_GLIBC_ARCH.whl from the same files, for pip install
	@scripts/wheel.py build/portable/package/ringmaster-* dist

try-packages:  ## install the packages in dist into fresh Debian 12 chroots and train a first model in each (root, debootstrap)
	@scripts/try_packages.sh

deb: deps  ## build dist/ringmaster_VERSION_ARCH.deb for machines with the same release of Debian or Ubuntu
	@cmake --preset portable -DRING_CUDA=$(if $(filter ON,$(CUDA)),ON,OFF) -DRING_PARQUET=OFF && cmake --build --preset portable -j $(JOBS)
	@mkdir -p dist && cpack -G DEB -B build/portable/deb --config build/portable/CPackConfig.cmake >/dev/null
	@mv build/portable/deb/*.deb dist/ && ls dist/*.deb

format:  ## run clang-format on every source file
	@git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format -i

tidy: deps  ## run clang-tidy on every host file; warnings are errors
	@cmake --preset release -B build/tidy -DRING_UNITY=OFF && cmake --build build/tidy --target ring_build_info
	@run-clang-tidy -quiet -p build/tidy -j $(JOBS) '$(CURDIR)/(?!build)[^.]*\.cpp$$'

soak: build  ## test recovery from failures for an hour (MINUTES=30 KILLS=500 SCHEDULES=1000000); needs an idle machine
	@tests/recovery/kills.py $(BUILD)/ringmaster --kills $(or $(KILLS),500) --nodes $(or $(NODE_KILLS),40) --phases all
	@RING_SCHEDULES=$(or $(SCHEDULES),1000000) $(BUILD)/tests/test_launcher --gtest_filter='SlowRendezvous.*'
	@tests/recovery/soak.py $(BUILD)/ringmaster --minutes $(or $(MINUTES),30)

debug: deps  ## build for debugging and run all tests
	@cmake --preset cpu-debug && cmake --build --preset cpu-debug -j $(JOBS) && ctest --preset cpu-debug -j $(JOBS)

# The sanitizers of g++ 12 crash now and then under strong address randomisation: their tests run without it where that is allowed.
FIXED_ADDRESSES = $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

# Seconds that each fuzz target mutates its inputs.
FUZZ_SECONDS ?= 5
# Rooms that read input. Fuzz targets also link others, whose compilation would take twice as long with sanitizers.
READERS = core;kernels;job;text;comm;data;checkpoint;launcher;model;engine

test-sanitized: deps  ## test and fuzz file and settings readers under ASan and UBSan (FUZZ_SECONDS=5 each); test threads under TSan
	@cmake --preset cpu-asan -DRING_FUZZ_SECONDS=$(FUZZ_SECONDS) "-DRING_SANITIZE_ROOMS=$(READERS)" && cmake --build --preset cpu-asan -j $(JOBS) --target sanitized_tests
	@$(FIXED_ADDRESSES) ctest --preset cpu-asan -j $(JOBS) -R '^(core|text|data|fuzz)\.'
	@cmake --preset cpu-tsan && cmake --build --preset cpu-tsan -j $(JOBS) --target thread_tests
	@$(FIXED_ADDRESSES) ctest --preset cpu-tsan -j $(JOBS) -R '^(core|job|comm|text|data)\.'

asan: deps  ## run all tests under the address and undefined-behaviour sanitizers
	@cmake --preset cpu-asan -DRING_SANITIZE_ROOMS= && cmake --build --preset cpu-asan -j $(JOBS) && $(FIXED_ADDRESSES) ctest --preset cpu-asan -j $(JOBS)

tsan: deps  ## run all tests under the thread sanitizer
	@cmake --preset cpu-tsan && cmake --build --preset cpu-tsan -j $(JOBS) && $(FIXED_ADDRESSES) ctest --preset cpu-tsan -j $(JOBS)

clean:  ## remove build/ and dist/
	@rm -rf build dist
