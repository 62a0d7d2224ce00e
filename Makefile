# Every target works alone from a fresh clone with Python >= 3.11, gcc, make and a package index:
# it makes .venv, installs what it needs, builds, runs. Stamps in .venv make the second time quick;
# whether C has to be compiled is setup.py's to decide (by content), so `build` always asks it.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
	done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
STAMP := $(VENV)/.stamp
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
PLATFORM ?= manylinux_2_34_$(shell uname -m)
# Extra arguments for pytest: make test ARGS="-k softmax -x"; ARGS="-n0 --pdb": in one process.
ARGS ?=
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal
# Instruction sets of the C tests under sanitizers: all, or one, the best that this machine has.
SETS ?= all

# OpenBLAS (NumPy's) takes a kernel by these; a number measured under them is not comparable.
unexport OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

.PHONY: help demo extension build fake test test-c test-long mutants proof bench bench-kernels bench-systems wheel \
	wheel-cpu sdist style format \
	types docs sanitize sanitize-c sanitize-python cuda cuda-check cuda-resources cuda-oldest gpu-check gpu-bundle clean
.DEFAULT_GOAL := help
# One environment, one pip at a time; setup.py and tests/c use the cores.
.NOTPARALLEL:

help:
	@echo "make demo        train a real model on real data, in seconds"
	@echo "make test        the fast tests, Python and C (ARGS=... goes to pytest)"
	@echo "make test-long   learning runs and comparisons (installs $(TORCH), pandas, polars, pyarrow, matplotlib, scikit-learn, ipykernel)"
	@echo "make mutants     changes that tests must notice (ARGS=words of their names)"
	@echo "make proof       everything at full counts, sanitizers included"
	@echo "make cuda        NVIDIA's header wheels into the environment, about 1 GB"
	@echo "make cuda-check  the CUDA backend where there is nvcc but no GPU"
	@echo "make cuda-resources  kernels take no more registers and memory than the table says"
	@echo "make cuda-oldest kernels compile with CUDA 12.8's compiler (fetches 130 MB of wheels)"
	@echo "make gpu-check   the CUDA backend on this machine's GPU (PART=first|tests|sanitize|..."
	@echo "make gpu-bundle  what gpu-check needs on a machine without a network"
	@echo "make bench       ratios against PyTorch, measured side by side"
	@echo "make bench-kernels  the same of convolutions and of layers of sequences alone"
	@echo "make bench-systems  whole epochs of the examples' systems, 26 GB of cubes too: hours"
	@echo "make wheel       one cp311-abi3 wheel in dist/, checked, with CUDA kernels where nvcc is"
	@echo "make wheel-cpu   the same without kernels, in dist/cpu/"
	@echo "make sdist       the sources in dist/, checked: they build and train elsewhere"
	@echo "make style       ruff and clang-format (make format mends)"
	@echo "make types       mypy --strict, and stubtest of the extension"
	@echo "make docs        the documentation with its reference, in build/docs/index.html"
	@echo "make sanitize    C tests under address, undefined and thread; Python under address"
	@echo "make clean       remove build/, dist/ and .venv"
	@echo
	@echo "PYTHON=$(PYTHON)  VENV=$(VENV)  HOTLOOP_DATA=$(HOTLOOP_DATA)"

# ---------------------------------------------------------------------------- environment

$(STAMP)-venv:
	@test -n "$(PYTHON)" || { echo "make: Python >= 3.11 was not found; set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: PYTHON=$(PYTHON) is older than 3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: $(PYTHON) cannot make a virtual" \
		"environment; install its venv package (Debian and Ubuntu: python3-venv)" >&2; exit 1; }
	@touch $@

# The editable install: once, and again when the description of the project changes.
$(STAMP)-install: pyproject.toml setup.py python/hotloop/_version.py | $(STAMP)-venv
	@$(PIP) install 'setuptools>=77' 'numpy>=2.0'
	@$(PIP) install --no-build-isolation -e '.[test]'
	@touch $@

$(STAMP)-plot $(STAMP)-style $(STAMP)-types $(STAMP)-docs $(STAMP)-wheel: $(STAMP)-%: $(STAMP)-install
	@$(PIP) install --no-build-isolation -e '.[$*]'
	@touch $@

# The models of the zoo are compared with their origins; neither may bring another torch.
$(STAMP)-torch: | $(STAMP)-venv
	@$(PIP) install $(TORCH)
	@$(PIP) install pillow pyyaml huggingface_hub safetensors
	@$(PIP) install --no-deps $(TORCHVISION) timm==1.0.31
	@touch $@

# What users may have beside hotloop.
$(STAMP)-extras: | $(STAMP)-venv
	@$(PIP) install pandas polars pyarrow matplotlib pillow h5py tokenizers scikit-learn ipykernel \
		tensorboard
	@touch $@

# A rival for the matrix products; never a dependency.
$(STAMP)-blas: | $(STAMP)-venv
	@$(PIP) install scipy-openblas32
	@touch $@

# NVIDIA's headers, for what the toolkit has not: they lie in the wheels of the libraries.
$(STAMP)-cuda: | $(STAMP)-venv
	@$(PIP) install --no-deps nvidia-cublas nvidia-cuda-nvrtc nvidia-cudnn-cu13 \
		nvidia-cudnn-frontend
	@touch $@

# The package alone, which is what runs of it need; `build` is what tests need.
extension: $(STAMP)-install
	@$(BIN)/python setup.py -q build_ext --inplace

build: extension fake

# The emulated driver, cuBLASLt, cuDNN and NVRTC as libraries, which tests in Python load.
FAKES := $(CURDIR)/build/cuda-tests/release
fake: $(STAMP)-install
	@$(MAKE) -s -C tests/cuda fake

# ---------------------------------------------------------------------------- run and test

demo: extension
	@$(BIN)/hotloop demo

test: build test-c
	$(PYTEST) tests $(ARGS)

test-c: extension
	$(MAKE) -C tests/c run
	$(MAKE) -C tests/cuda run

cuda: $(STAMP)-cuda

# What `make test` leaves out of the CUDA backend, where nvcc is and no GPU: our declarations are
# NVIDIA's, the real cuDNN has plans for the zoo, and Python runs over the emulated driver with the kernels' fatbins embedded: every op,
# with pointwise programs interpreted and compiled, whole trainings against the CPU's, and the memory
# of the zoo.
cuda-check: export HL_CUDA := 1
cuda-check: export HL_CUDA_ARCHS ?= 75;90
cuda-check: export HL_WERROR := 1
cuda-check: build
	$(MAKE) -C tests/cuda check-driver
	$(MAKE) -C tests/cuda plans
	HOTLOOP_TEST_GPU=1 HOTLOOP_CUDA_PATH=$(FAKES)/libcuda_fake.so HOTLOOP_NVRTC_PATH=none \
		HOTLOOP_CUDNN_PATH=none $(PYTEST) tests/ops tests/train/test_gpu.py tests/train/test_gpu_copies.py \
		tests/train/test_gpu_launches.py tests/train/test_gpu_sequences.py \
		tests/train/test_gpu_streams.py tests/train/test_gpu_resume.py \
		tests/train/test_gpu_not_finite.py tests/train/test_gpu_recompute.py \
		tests/train/test_gpu_initialization.py tests/train/test_loggers.py::test_a_gpu \
		tests/train/test_attention_precision.py tests/cuda $(ARGS)
	HOTLOOP_TEST_GPU=1 HOTLOOP_CUDA_PATH=$(FAKES)/libcuda_fake.so HOTLOOP_NVRTC_PATH=none \
		HOTLOOP_CUDNN_PATH=none $(PYTEST) --long tests/models/test_memory_gpu.py $(ARGS)
	HOTLOOP_TEST_GPU=1 HOTLOOP_CUDA_PATH=$(FAKES)/libcuda_fake.so \
		HOTLOOP_CUBLASLT_PATH=$(FAKES)/libcublasLt_fake.so \
		HOTLOOP_CUDNN_PATH=$(FAKES)/libcudnn_fake.so \
		HOTLOOP_NVRTC_PATH=$(FAKES)/libnvrtc_fake.so HOTLOOP_CACHE_PATH=$(FAKES)/cache \
		$(PYTEST) $(ARGS) tests/train/test_gpu.py tests/train/test_gpu_products.py \
		tests/train/test_gpu_not_finite.py tests/train/test_gpu_recompute.py \
		tests/train/test_gpu_convolutions.py tests/train/test_gpu_recurrent.py \
		tests/train/test_attention_precision.py tests/train/test_gpu_copies.py::test_same_bits_as_casts \
		tests/train/test_loggers.py::test_a_gpu \
		tests/train/test_gpu_launches.py tests/ops/test_values.py tests/ops/test_conv_16.py \
		tests/models/test_memory_gpu.py

# Registers, stack, spills and shared memory of every kernel against tests/cuda/resources.txt;
# ARGS=--write writes it anew.
cuda-resources: export HL_CUDA := 1
cuda-resources: export HL_CUDA_ARCHS := 75;90
cuda-resources: extension
	$(BIN)/python tests/cuda/resources.py $(ARGS)

# Apart from .venv, whose NVRTC would be found and used in tests.
OLDEST := build/cuda-12.8
$(OLDEST)/.stamp: | $(STAMP)-venv
	@rm -rf $(OLDEST)
	@$(PIP) install --no-deps --target $(OLDEST) nvidia-cuda-nvrtc-cu12==12.8.* \
		nvidia-cuda-runtime-cu12==12.8.* nvidia-cuda-nvcc-cu12==12.8.*
	@touch $@

# For HL_CUDA_ARCHS, or every GPU. What is generated at run time compiles by it, too: the emulated
# driver has NVRTC asked.
cuda-oldest: ARCHS = $(filter-out all,$(subst ;, ,$(HL_CUDA_ARCHS)))
cuda-oldest: $(OLDEST)/.stamp build
	$(BIN)/python tests/cuda/check_nvrtc.py $(OLDEST) $(if $(ARCHS),--archs $(ARCHS))
	HL_FAKE=arch=75 HOTLOOP_CUDA_PATH=$(FAKES)/libcuda_fake.so HOTLOOP_CUBLASLT_PATH=none \
		HOTLOOP_NVRTC_PATH=$(CURDIR)/$(OLDEST)/nvidia/cuda_nvrtc/lib \
		$(BIN)/python tests/cuda/check_generated.py

# The Python that has PyTorch; no environment is made, no index asked (tests/gpu/check.py).
gpu-check:
	$(PYTHON) tests/gpu/check.py $(PART) $(ARGS)

gpu-bundle: $(STAMP)-venv
	$(BIN)/python tests/gpu/bundle.py $(ARGS)

test-long: build $(STAMP)-torch $(STAMP)-extras
	$(PYTEST) tests --long -m "long or parity or extra" $(ARGS)

# Changes that tests must notice, each in a copy of the tree (ARGS: words of their names).
mutants: build
	$(BIN)/python tests/mutants $(ARGS)

proof: build $(STAMP)-torch $(STAMP)-extras
	$(BIN)/python tests/proof.py $(ARGS)

bench: extension $(STAMP)-torch $(STAMP)-blas
	$(BIN)/python -m benchmarks $(ARGS)

bench-kernels: extension $(STAMP)-torch
	$(BIN)/python -m benchmarks.kernels $(ARGS)
	$(BIN)/python -m benchmarks.sequences $(ARGS)
	$(BIN)/python -m benchmarks.generation $(ARGS)
	$(BIN)/python -m benchmarks.channels $(ARGS)

# The workloads of examples/: phase 1 and epochs of cubes, in memory and streamed from 26 GB of files;
# epochs of windows and of JPEG files; the step of CAPE.
bench-systems: extension $(STAMP)-torch $(STAMP)-extras
	$(BIN)/python -m benchmarks.cubes
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.temporal
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks --rounds 3 --only cape cape-bf16 --out benchmarks/results/$$(date +%F)-cape.json

# ---------------------------------------------------------------------------- release

# The TurboJPEG that a wheel holds: HL_TURBOJPEG=FILE names an archive, HL_TURBOJPEG= says that none
# is wanted; else one is built, of TURBOJPEG_SOURCE=TARBALL or of the sources that apt has.
TURBOJPEG_SOURCE ?=
TURBOJPEG_BUILT := build/turbojpeg/$(or $(notdir $(TURBOJPEG_SOURCE)),apt)/libturbojpeg.a
HL_TURBOJPEG ?= $(TURBOJPEG_BUILT)
$(TURBOJPEG_BUILT): .ci/build_turbojpeg.py $(TURBOJPEG_SOURCE) | $(STAMP)-wheel
	$(BIN)/python .ci/build_turbojpeg.py $(@D) $(TURBOJPEG_SOURCE)

# auditwheel proves the platform tag, abi3audit that only the stable ABI is used, and
# .ci/check_wheel.py the rest: tags, exports, size, architectures, licences, and that it decodes and
# trains where nothing else is. `wheel` has CUDA kernels where nvcc is; `wheel-cpu`, which is smaller,
# has none and stands apart, because both have one name.
WHEEL_KIND := $(if $(shell command -v $${NVCC:-nvcc}),cuda,cpu)
wheel: WHEEL_DIR := dist
wheel-cpu: WHEEL_KIND := cpu
wheel-cpu: WHEEL_DIR := dist/cpu
wheel wheel-cpu: $(STAMP)-wheel $(filter $(TURBOJPEG_BUILT),$(HL_TURBOJPEG))
	@rm -rf build/wheel build/lib* build/bdist* && mkdir -p build/wheel $(WHEEL_DIR)
	HL_CUDA=$(if $(filter cuda,$(WHEEL_KIND)),1,0) HL_CUDA_ARCHS=all HL_TURBOJPEG=$(HL_TURBOJPEG) \
		$(PIP) wheel --no-deps --no-build-isolation -w build/wheel .
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat $(PLATFORM) --only-plat \
		-w build/wheel/repaired build/wheel/*.whl
	$(BIN)/abi3audit --strict build/wheel/repaired/*.whl
	$(BIN)/python .ci/check_wheel.py build/wheel/repaired/*.whl $(WHEEL_KIND) \
		$(if $(HL_TURBOJPEG),,--without-turbojpeg)
	@mv build/wheel/repaired/*.whl $(WHEEL_DIR) && ls -l $(WHEEL_DIR)

# What is published as source: .ci/check_sdist.py holds its contents against the repository, builds
# a wheel of it where there is nothing else, and trains with that. HL_CUDA=0: without kernels, whose
# sources are compared all the same.
sdist: $(STAMP)-wheel
	@rm -rf build/sdist python/hotloop.egg-info/SOURCES.txt && mkdir -p build/sdist dist
	@$(BIN)/python -m build --sdist --no-isolation -o build/sdist >build/sdist/log || \
		{ cat build/sdist/log; exit 1; }
	HL_CUDA=0 $(BIN)/python .ci/check_sdist.py build/sdist/*.tar.gz
	@mv build/sdist/*.tar.gz dist && ls -l dist

# ---------------------------------------------------------------------------- quality

C_FILES = $(shell find csrc kernels python/src tests benchmarks -name build -prune \
	-o -name '*.[ch]' -print -o -name '*.c[pu]*' -print)

style: $(STAMP)-style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: $(STAMP)-style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

types: extension $(STAMP)-types
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/stubtest hotloop._core

# A broken link, anchor or cross-reference is an error (not with -q, which drops warnings before they
# are counted), and so is a script or font of the network's.
# The variable turns off the theme's notice of its successor.
docs: export NO_MKDOCS_2_WARNING := 1
docs: extension $(STAMP)-docs
	@$(BIN)/python docs/site.py build/site
	@$(BIN)/mkdocs build
	@! grep -rnoE '<(script|link|img|iframe)[^>]*(src|href)="https?:[^"]*"' build/docs --include=*.html
	@echo "build/docs/index.html"

sanitize: sanitize-c sanitize-python

# An unreported leak in the interpreter is not ours; the C tests do look for leaks.
sanitize-c: extension
	$(MAKE) -C tests/c asan SETS=$(SETS)
	$(MAKE) -C tests/cuda asan
	$(MAKE) -C tests/c tsan SETS=$(SETS)

sanitize-python: fake
	@rm -rf build/sanitize
	@HL_SANITIZE=address,undefined $(BIN)/python setup.py -q build --build-lib build/sanitize
	PYTHONPATH=build/sanitize PYTHONMALLOC=malloc \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096 \
		UBSAN_OPTIONS=print_stacktrace=1 \
		$(PYTEST) tests --ignore=tests/lint $(ARGS)

clean:
	rm -rf build dist $(VENV) *.egg-info python/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -f python/hotloop/*.so
	@if [ -f tests/c/Makefile ]; then $(MAKE) -C tests/c clean; fi
