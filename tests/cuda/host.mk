# The CUDA backend's host side without a GPU: every test_d*.c here is one program over the emulated
# driver, linked against the core as setup.py builds it.
#
#   make -C tests/cuda -f host.mk run-host                     all of them, release flags
#   make -C tests/cuda -f host.mk run-host TESTS=test_device   one
#   make -C tests/cuda -f host.mk asan-host                    under address and undefined sanitizer
#   make -C tests/cuda -f host.mk run-gpu                      the kernels' tests on a GPU
#   make -C tests/cuda -f host.mk fake                         driver, cuBLASLt and NVRTC as
#                                                              libraries, for Python
#   make -C tests/cuda -f host.mk check-driver                 declarations against NVIDIA's headers

ROOT := $(abspath ../..)
PYTHON ?= $(if $(wildcard $(ROOT)/.venv/bin/python),$(ROOT)/.venv/bin/python,python3)
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
comma := ,
VARIANT := $(or $(subst $(comma),-,$(HL_SANITIZE)),release)
OUT := $(ROOT)/build/cuda-host/$(VARIANT)
HOST_ARCHIVE := $(OUT)/libhotloop.a
FAKE := $(ROOT)/build/cuda-host/libcuda_fake.so
FAKE_LT := $(OUT)/libcublasLt_fake.so
FAKE_NVRTC := $(OUT)/libnvrtc_fake.so
NVCC ?= nvcc
LIMIT_S ?= 300

TESTS ?= $(basename $(wildcard test_d*.c))
HOST_PROGRAMS := $(addprefix $(OUT)/,$(TESTS))
KERNELS := $(basename $(notdir $(wildcard $(ROOT)/kernels/cuda/*.cu)))
# The emulated driver with its kernels; in a library for Python it also needs base/half.c.
DRIVER_OBJECTS := $(addprefix $(OUT)/,fake_driver.o fake_module.o fake_memory.o fake_stream.o \
	fake_graph.o fake_kernels.o \
	$(patsubst emu/%.cpp,%.o,$(wildcard emu/*.cpp)) \
	$(addsuffix .kernel.o,$(KERNELS)))
HOST_OBJECTS := $(DRIVER_OBJECTS) $(OUT)/fake_table.o
HOST_HEADERS := $(wildcard *.h emu/*.h ../c/*.h) $(shell find $(ROOT)/csrc $(ROOT)/kernels -name '*.h' \
	-o -name '*.def')
WARN := -Wall -Wextra -Wshadow -Werror
SANITIZE := $(if $(HL_SANITIZE),-fsanitize=$(HL_SANITIZE) -fno-sanitize-recover=all)

export ASAN_OPTIONS := allocator_may_return_null=1:handle_segv=1:$(ASAN_OPTIONS)
export UBSAN_OPTIONS := print_stacktrace=1:$(UBSAN_OPTIONS)

.PHONY: run-host asan-host run-gpu fake check-driver HOST_FORCE
.DELETE_ON_ERROR:

run-host: $(HOST_PROGRAMS)
	@failed=0; for program in $(HOST_PROGRAMS); do \
		name=$$(basename $$program); \
		if (cd $(ROOT) && timeout $(LIMIT_S) $$program); then echo "ok   $$name"; \
		else echo "FAIL $$name (status $$?)"; failed=$$((failed + 1)); fi; \
	done; \
	if [ $$failed -ne 0 ]; then echo "$$failed programs failed"; exit 1; fi

asan-host:
	@$(MAKE) --no-print-directory -f host.mk run-host HL_SANITIZE=address,undefined

# test_kernels_*.cpp with their launches on the device that the library opens. The emulated kernels
# are linked too: they know the kernels' parameters. CASES=test_kernels_rows: one.
CASES ?= $(basename $(wildcard test_kernels_*.cpp))
GPU_PROGRAMS := $(addprefix $(OUT)/gpu/,$(CASES))
GPU_OBJECTS := $(addprefix $(OUT)/,gpu_launch.o $(patsubst emu/%.cpp,%.o,$(wildcard emu/*.cpp)) \
	$(addsuffix .kernel.o,$(KERNELS)))
run-gpu: $(GPU_PROGRAMS)
	@failed=0; for program in $(GPU_PROGRAMS); do \
		timeout $(LIMIT_S) $$program || failed=$$((failed + 1)); \
	done; \
	if [ $$failed -ne 0 ]; then echo "$$failed programs failed"; exit 1; fi

# setup.py decides by content; an archive that would be the same is not touched.
$(HOST_ARCHIVE): HOST_FORCE
	@cd $(ROOT) && $(PYTHON) setup.py -q core_archive --output=$(HOST_ARCHIVE:$(ROOT)/%=%)
HOST_FORCE:

EMULATE := -DHL_EMULATE='"tests/cuda/emu/twin.h"'
CXX_HOST = cd $(ROOT) && mkdir -p $(OUT) && $(CXX) -std=c++17 -O2 -g -fPIC -pthread -Icsrc -I. \
	$(WARN) $(SANITIZE)
CC_HOST = cd $(ROOT) && mkdir -p $(OUT) && $(CC) -std=gnu11 -O2 -g -fPIC -pthread -Icsrc -I. \
	$(WARN) $(SANITIZE)

$(OUT)/%.kernel.o: $(ROOT)/kernels/cuda/%.cu $(HOST_HEADERS)
	@$(CXX_HOST) $(EMULATE) -x c++ -c $< -o $@
$(OUT)/%.o: emu/%.cpp $(HOST_HEADERS)
	@$(CXX_HOST) $(EMULATE) -c tests/cuda/$< -o $@
$(OUT)/%.o: %.cpp $(HOST_HEADERS)
	@$(CXX_HOST) $(EMULATE) -c tests/cuda/$< -o $@
$(OUT)/%.o: %.c $(HOST_HEADERS)
	@$(CC_HOST) -c tests/cuda/$< -o $@
$(OUT)/half.o: $(ROOT)/csrc/base/half.c $(HOST_HEADERS)
	@$(CC_HOST) -c $< -o $@

$(HOST_PROGRAMS): $(OUT)/%: %.c $(HOST_OBJECTS) $(HOST_HEADERS) $(HOST_ARCHIVE) $(FAKE_LT) $(FAKE_NVRTC)
	@cd $(ROOT) && $(CC) @$(HOST_ARCHIVE).flags -Werror \
		-DCHECK_REPRO='"make -C tests/cuda -f host.mk run-host"' tests/cuda/$*.c \
		-DFAKE_LT='"$(FAKE_LT)"' -DFAKE_NVRTC='"$(FAKE_NVRTC)"' $(HOST_OBJECTS) $(HOST_ARCHIVE) \
		$(FAKE_NVRTC) -Wl,-rpath,$(OUT) -rdynamic -lstdc++ -lm -ldl -o $@

$(GPU_PROGRAMS): $(OUT)/gpu/%: %.cpp $(GPU_OBJECTS) $(HOST_HEADERS) $(HOST_ARCHIVE)
	@mkdir -p $(OUT)/gpu
	@$(CXX_HOST) $(EMULATE) -DHL_TEST_GPU tests/cuda/$*.cpp $(GPU_OBJECTS) $(HOST_ARCHIVE) \
		-lm -ldl -o $@

# Whole or not at all: several tests may make it at once.
fake: $(FAKE) $(FAKE_LT) $(FAKE_NVRTC)
	@cp -u $(FAKE_LT) $(FAKE_NVRTC) $(dir $(FAKE))
# What it compiles for the emulation, it compiles as the rest is.
$(OUT)/fake_nvrtc.o: CXX_HOST += -DFAKE_ROOT='"$(ROOT)"' -DFAKE_FLAGS='"$(if $(SANITIZE),-g $(SANITIZE))"'
$(FAKE_NVRTC): $(OUT)/fake_nvrtc.o
	@$(CXX) -shared $^ $(SANITIZE) -pthread -Wl,-soname,libnvrtc_fake.so -o $@.$$$$ && mv $@.$$$$ $@
$(FAKE_LT): $(OUT)/fake_cublaslt.o $(OUT)/half.o
	@$(CC) -shared $^ $(SANITIZE) -Wl,-soname,libcublasLt_fake.so -lm -ldl -o $@.$$$$ && mv $@.$$$$ $@
# Kernels that were kept on disk are of the emulation as it was.
$(FAKE): $(DRIVER_OBJECTS) $(OUT)/fake_library.o $(OUT)/half.o
	@rm -rf $(ROOT)/build/cuda-host/cache
	@$(CXX) -shared $^ -pthread -Wl,-soname,libcuda_fake.so -o $@.$$$$ && mv $@.$$$$ $@

# Compiles or not: nothing is linked or run. nvcc knows where its headers are; cuBLASLt's and NVRTC's
# may lie in wheels (make cuda).
WHEELS := $(ROOT)/.venv/lib/python*/site-packages/nvidia/*/include
CUBLASLT_H ?= $(firstword $(wildcard $(WHEELS)/cublasLt.h))
NVRTC_H ?= $(firstword $(wildcard $(WHEELS)/nvrtc.h))
check-driver:
	@cd $(ROOT) && $(NVCC) -Xcompiler -std=gnu11$(comma)-Wall$(comma)-Werror -Icsrc -I. \
		$(if $(CUBLASLT_H),-DHL_CHECK_CUBLASLT -I$(dir $(CUBLASLT_H))) \
		$(if $(NVRTC_H),-DHL_CHECK_NVRTC -I$(dir $(NVRTC_H))) \
		-c tests/cuda/driver_check.c -o /dev/null && echo "ok   driver_check" \
		"$(if $(CUBLASLT_H),with cublasLt.h,without cublasLt.h: make cuda fetches it)," \
		"$(if $(NVRTC_H),with nvrtc.h,without nvrtc.h: make cuda fetches it)"
