# What people type. Every target does the set-up it needs by itself; the second time that takes a moment.
#
# The work is done by CMake presets (CMakePresets.json) and scripts/; use those directly as you like.
MAKEFLAGS += --no-print-directory
PARALLEL ?= $(shell nproc)
TORCH ?= ON
FUZZ_SECONDS ?= 60
sources = $(shell find src tests bench examples cmake -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
KILLS ?= 200
LAB ?= /var/tmp/trireme-lab
.PHONY: help setup build test test-faults test-lab test-gpu pictures quickstart bench docs format check tidy debug asan tsan asan-tensors tsan-tensors fuzz cuda clean

help:  ## this list
	@echo "Trireme: make TARGET [PARALLEL=$(PARALLEL)] [TORCH=OFF]"
	@echo
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {gsub(" ", "|", $$1); printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PARALLEL=N   compile and test N at a time (all cores when not given)"
	@echo "  TORCH=OFF    without LibTorch: everything but libtrireme_runtime"

setup:  ## install packages and LibTorch, only what is missing (scripts/setup --help)
	@scripts/setup $(if $(filter OFF,$(TORCH)),--no-torch)

# $(call configure,PRESET,OPTIONS), $(call compile,PRESET), $(call run_tests,PRESET): CMake reconfigures by itself
# when its files change, so configuring is for the first time and for changed options.
configure = echo "configure: build/$(1)" && cmake --preset $(1) $(2) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
compile = echo "build: build/$(1), $(PARALLEL) at a time" && $(plainly) scripts/build-progress cmake --build --preset $(1) -j $(PARALLEL)
# ctest counts in half cores, and has one more: tests/CMakeLists.txt.
run_tests = echo "test: build/$(1)" && $(plainly) ctest --preset $(1) -j $$((2 * $(PARALLEL) + 1))

build: setup  ## the program build/release/trireme and its libraries
	@$(call configure,release,-DTRIREME_TORCH=$(TORCH))
	@$(call compile,release)

test: setup  ## every test; benchmarks and examples must compile
	@$(call configure,release,-DTRIREME_TORCH=$(TORCH))
	@$(call compile,release) --target all tests benches $(if $(filter OFF,$(TORCH)),,examples)
	@$(call run_tests,release)

test-faults: build  ## kill a run KILLS=200 times, in every phase of saving: it must end with the bits of one left alone
	@bash tests/faults/storm.sh build/release/trireme recipes/tiny.toml $(KILLS)

# TORCHRUN=PATH and RAY_PYTHON=PATH name what is not in PATH (tests/lab/torchrun.sh, ray.sh). What is not there is skipped with a sentence.
test-lab: build  ## launchers on hosts in namespaces (Slurm of four nodes, torchrun, Ray), 100 kills of an elastic run, 50 of parameter servers; root. Slurm is installed into LAB, not into the system
	@LAB_FOLDER=$(LAB) bash tests/lab/all.sh build/release/trireme .

pictures: build  ## screenshots of the live page in docs/images, made by the test that drives a browser (chromium, chromium-driver)
	@folder=$$(mktemp -d) && bash tests/browser/dashboard.sh $(CURDIR)/build/release/trireme $(CURDIR) $$folder && \
	  cp $$folder/dashboard-*.png docs/images/ && rm -rf $$folder

# What it needs: not the libraries for GPUs, MPI and HTTP, which `make build` adds.
quickstart: setup  ## build, then train a small GPT on a real text: a sample and a report page in three minutes
	@$(call configure,release,-DTRIREME_TORCH=ON)
	@$(call compile,release) --target trireme trireme_runtime
	@scripts/quickstart $(if $(STEPS),--steps $(STEPS))

bench: setup  ## every benchmark, with the peer or limit it is held against
	@$(call configure,release,-DTRIREME_TORCH=$(TORCH))
	@$(call compile,release) --target all benches
	@failed=; for bench in build/release/bench/*; do \
	  { [ -f "$$bench" ] && [ -x "$$bench" ]; } || continue; \
	  echo "run: $$bench"; "$$bench" && continue; \
	  [ $$? = 77 ] && echo "not measured: $$bench" || failed="$$failed $${bench##*/}"; \
	done; [ -z "$$failed" ] || { echo "make bench: failed:$$failed"; exit 1; }

docs: build  ## docs/recipe.md, commands.md and combinations.md, from what the program says of itself
	@build/release/trireme recipe docs --markdown >docs/recipe.md
	@build/release/trireme docs >docs/commands.md
	@build/release/trireme recipe rules --markdown >docs/combinations.md

format:  ## let clang-format decide, and wrap paragraphs of the documents at 120 columns
	@clang-format-14 -i $(sources)
	@scripts/wrap-prose $(filter-out docs/recipe.md docs/commands.md docs/combinations.md,$(wildcard *.md docs/*.md docs/decisions/*.md src/trireme/*/README.md))

check: setup  ## formatting and the layer rule, as CI checks them
	@echo "check: formatting" && printf '%s\n' $(sources) | xargs -n 100 -P $(PARALLEL) clang-format-14 --dry-run -Werror
	@echo "check: layers" && scripts/check-layers

tidy:  ## clang-tidy on the files that a change touches (FILES="..." for others; needs clang-tidy-14 and a configured build)
	@scripts/tidy --jobs $(PARALLEL) $(FILES)

debug: setup  ## the tensor-free rooms for a debugger, and their tests
	@$(call configure,debug)
	@$(call compile,debug) --target all tests
	@$(call run_tests,debug)

# The thread sanitizer of GCC before 14 does not start where addresses are randomised by more than 28 bits (Ubuntu 24.04).
tsan tsan-tensors: plainly := $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -le 28 ] || echo setarch -R)
asan tsan: setup  ## the tests of the tensor-free rooms under sanitizers, as in CI
	@$(call sanitize,$@)
asan-tensors: setup  ## the tests of rooms with tensors under the address sanitizer, on one thread of LibTorch
	@OMP_NUM_THREADS=1 && export OMP_NUM_THREADS && $(call sanitize,$@)
tsan-tensors: setup  ## a few end-to-end training steps under the thread sanitizer: some minutes, most of them compiling
	@OMP_NUM_THREADS=1 && export OMP_NUM_THREADS && $(call configure,$@) && $(call compile,$@) --target test_train && $(call run_tests,$@)
sanitize = $(call configure,$(1)) && $(call compile,$(1)) --target tests && $(call run_tests,$(1))

# Ends at the first input that breaks something, and leaves it in build/fuzz/tests/fuzz/crash-*; run the target on it again.
fuzz: setup  ## look for files that break the readers of file formats (needs clang; FUZZ_SECONDS=60 each)
	@command -v clang++ >/dev/null || { echo "make fuzz: no clang++; libFuzzer comes with it (apt-get install clang)"; exit 1; }
	@$(call configure,fuzz,-DTRIREME_FUZZ_SECONDS=$(FUZZ_SECONDS))
	@$(call compile,fuzz) --target fuzz

test-gpu: setup  ## the tests on a GPU (needs nvcc, a GPU and torch's CUDA libraries)
	@$(call configure,release,-DTRIREME_TORCH=ON -DTRIREME_CUDA=ON)
	@$(call compile,release) --target test_gpu --target gpu_ranks --target trireme
	@build/release/bin/test_gpu
	@bash tests/gpu/nccl.sh build/release
	@bash tests/gpu/graphs_nccl.sh build/release
	@bash tests/gpu/sweep.sh build/release/trireme .

cuda: setup  ## as build and test, with kernels for every GPU from Ampere on (needs the CUDA toolkit)
	@$(call configure,cuda,-DTRIREME_TORCH=$(TORCH))
	@$(call compile,cuda) --target all tests benches
	@$(call run_tests,cuda)

clean:  ## remove build/ (LibTorch stays in its cache)
	rm -rf build
