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
.PHONY: help deps build program quickstart test test-gpu pack-gpu-tests test-sanitized soak bench bench-gpu package deb format tidy asan tsan debug clean

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

quickstart: program  ## from nothing to a trained language model and a sample of its text
	@scripts/quickstart.sh

test: build  ## build and run every test
	@ctest --preset release -j $(JOBS)

test-gpu: build  ## build and run every test that needs one GPU; GPUS=2: those that need several, with two
	@scripts/gpu_tests.py run $(BUILD) --gpus $(or $(GPUS),1) $(ARGS)

pack-gpu-tests: build  ## build/gpu_tests.tar.xz: those tests for a machine without a compiler (scripts/gpu_tests.py run PACKAGE)
	@scripts/gpu_tests.py pack --build $(BUILD)

bench: configure  ## measure every op (ARGS= goes to the benchmark)
	@cmake --build --preset release -j $(JOBS) --target bench
	@$(BUILD)/bench/programs/bench_op_cases $(ARGS)

bench-gpu: program  ## training steps of bench/shapes on this GPU, ours and PyTorch's (ARGS= goes to scripts/bench_gpu.sh)
	@scripts/bench_gpu.sh $(ARGS)

package: deps  ## dist/ringmaster-VERSION-linux-ARCH.tar.gz, runs elsewhere without root
	@scripts/package.sh -DRING_CUDA=$(if $(filter ON,$(CUDA)),ON,OFF)

deb: deps  ## dist/ringmaster_VERSION_ARCH.deb for machines with the same release of Debian or Ubuntu
	@cmake --preset portable -DRING_CUDA=$(if $(filter ON,$(CUDA)),ON,OFF) -DRING_PARQUET=OFF && cmake --build --preset portable -j $(JOBS)
	@mkdir -p dist && cpack -G DEB -B build/portable/deb --config build/portable/CPackConfig.cmake >/dev/null
	@mv build/portable/deb/*.deb dist/ && ls dist/*.deb

format:  ## clang-format every source file
	@git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format -i

tidy: configure  ## clang-tidy every host file; a warning fails
	@cmake --build --preset release -j $(JOBS) --target ring_build_info
	@run-clang-tidy -quiet -p $(BUILD) -j $(JOBS) '$(CURDIR)/(?!build)[^.]*\.cpp$$'

soak: build  ## runs that fail for an hour (MINUTES=30 KILLS=500 SCHEDULES=1000000); run alone, as it measures time
	@tests/recovery/kills.py $(BUILD)/ringmaster --kills $(or $(KILLS),500) --phases all
	@RING_SCHEDULES=$(or $(SCHEDULES),1000000) $(BUILD)/tests/test_launcher --gtest_filter='SlowRendezvous.*'
	@tests/recovery/soak.py $(BUILD)/ringmaster --minutes $(or $(MINUTES),30)

debug: deps  ## debug build and all tests
	@cmake --preset cpu-debug && cmake --build --preset cpu-debug -j $(JOBS) && ctest --preset cpu-debug -j $(JOBS)

# The sanitizers of g++ 12 crash now and then under strong address randomisation: their tests run without it where that is allowed.
FIXED_ADDRESSES = $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

# Seconds that each fuzz target mutates its inputs.
FUZZ_SECONDS ?= 5

test-sanitized: deps  ## readers of files and settings under ASan and UBSan (tests, fuzzing: FUZZ_SECONDS=5 each), threads under TSan
	@cmake --preset cpu-asan -DRING_FUZZ_SECONDS=$(FUZZ_SECONDS) && cmake --build --preset cpu-asan -j $(JOBS) --target sanitized_tests
	@$(FIXED_ADDRESSES) ctest --preset cpu-asan -j $(JOBS) -R '^(core|text|data|fuzz)\.'
	@cmake --preset cpu-tsan && cmake --build --preset cpu-tsan -j $(JOBS) --target thread_tests
	@$(FIXED_ADDRESSES) ctest --preset cpu-tsan -j $(JOBS) -R '^(core|job|comm|text|data)\.'

asan: deps  ## unit and dist tests under the address and undefined-behaviour sanitizers
	@cmake --preset cpu-asan && cmake --build --preset cpu-asan -j $(JOBS) && $(FIXED_ADDRESSES) ctest --preset cpu-asan -j $(JOBS)

tsan: deps  ## unit and dist tests under the thread sanitizer
	@cmake --preset cpu-tsan && cmake --build --preset cpu-tsan -j $(JOBS) && $(FIXED_ADDRESSES) ctest --preset cpu-tsan -j $(JOBS)

clean:  ## remove build/ and dist/
	@rm -rf build dist
