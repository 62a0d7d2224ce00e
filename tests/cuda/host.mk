# The CUDA backend's host side without a GPU: every test_d*.c here is one program over the emulated
# driver, linked against the core as setup.py builds it.
#
#   make -C tests/cuda -f host.mk run-host                     all of them, release flags
#   make -C tests/cuda -f host.mk run-host TESTS=test_device   one
#   make -C tests/cuda -f host.mk asan-host                    under address and undefined sanitizer
#   make -C tests/cuda -f host.mk fake                         the driver as a library, for Python
#   make -C tests/cuda -f host.mk check-driver                 declarations against NVIDIA's headers

ROOT := $(abspath ../..)
PYTHON ?= $(if $(wildcard $(ROOT)/.venv/bin/python),$(ROOT)/.venv/bin/python,python3)
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
comma := ,
VARIANT := $(or $(subst $(comma),-,$(HL_SANITIZE)),release)
OUT := $(ROOT)/build/cuda-tests/$(VARIANT)
HOST_ARCHIVE := $(OUT)/libhotloop.a
FAKE := $(ROOT)/build/cuda-tests/libcuda_fake.so
NVCC ?= nvcc
LIMIT_S ?= 300

TESTS ?= $(basename $(wildcard test_d*.c))
HOST_PROGRAMS := $(addprefix $(OUT)/,$(TESTS))
HOST_SHARED := fake_driver.cpp fake_memory.cpp fake_table.c fake_probe.c
HOST_OBJECTS := $(addprefix $(OUT)/,$(addsuffix .o,$(basename $(HOST_SHARED))))
HOST_HEADERS := $(wildcard *.h ../c/check.h) $(shell find $(ROOT)/csrc $(ROOT)/kernels -name '*.h' \
	-o -name '*.def')
WARN := -Wall -Wextra -Wshadow -Werror
SANITIZE := $(if $(HL_SANITIZE),-fsanitize=$(HL_SANITIZE) -fno-sanitize-recover=all)

export ASAN_OPTIONS := allocator_may_return_null=1:handle_segv=1:$(ASAN_OPTIONS)
export UBSAN_OPTIONS := print_stacktrace=1:$(UBSAN_OPTIONS)

.PHONY: run-host asan-host fake check-driver HOST_FORCE
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

# setup.py decides by content; an archive that would be the same is not touched.
$(HOST_ARCHIVE): HOST_FORCE
	@cd $(ROOT) && $(PYTHON) setup.py -q core_archive --output=$(HOST_ARCHIVE:$(ROOT)/%=%)
HOST_FORCE:

$(OUT)/%.o: %.cpp $(HOST_HEADERS)
	@mkdir -p $(OUT)
	@cd $(ROOT) && $(CXX) -std=c++17 -O1 -g -fPIC -pthread -Icsrc -I. $(WARN) $(SANITIZE) \
		-c tests/cuda/$< -o $@

$(OUT)/%.o: %.c $(HOST_HEADERS)
	@mkdir -p $(OUT)
	@cd $(ROOT) && $(CC) -std=gnu11 -O1 -g -fPIC -pthread -Icsrc -I. $(WARN) $(SANITIZE) \
		-c tests/cuda/$< -o $@

$(HOST_PROGRAMS): $(OUT)/%: %.c $(HOST_OBJECTS) $(HOST_HEADERS) $(HOST_ARCHIVE)
	@cd $(ROOT) && $(CC) @$(HOST_ARCHIVE).flags -Werror \
		-DCHECK_REPRO='"make -C tests/cuda -f host.mk run-host"' tests/cuda/$*.c \
		$(HOST_OBJECTS) $(HOST_ARCHIVE) -lstdc++ -lm -ldl -o $@

# Whole or not at all: several tests may make it at once.
fake: $(FAKE)
$(FAKE): fake_driver.cpp fake_memory.cpp fake_probe.c fake_library.c $(HOST_HEADERS)
	@mkdir -p $(dir $@)
	@cd $(ROOT) && dir=$$(mktemp -d $(dir $@)fake.XXXXXX) && \
		$(CXX) -std=c++17 -O1 -g -fPIC -pthread -Icsrc -I. $(WARN) -c \
			tests/cuda/fake_driver.cpp -o $$dir/driver.o && \
		$(CXX) -std=c++17 -O1 -g -fPIC -pthread -Icsrc -I. $(WARN) -c \
			tests/cuda/fake_memory.cpp -o $$dir/memory.o && \
		$(CC) -std=gnu11 -O1 -g -fPIC -Icsrc -I. $(WARN) -shared tests/cuda/fake_probe.c \
			tests/cuda/fake_library.c $$dir/driver.o $$dir/memory.o -lstdc++ -pthread \
			-Wl,-soname,libcuda_fake.so -o $$dir/fake.so && \
		mv $$dir/fake.so $@; status=$$?; rm -rf $$dir; exit $$status

# Compiles or not: nothing is linked or run. nvcc knows where its headers are.
check-driver:
	@cd $(ROOT) && $(NVCC) -Xcompiler -std=gnu11$(comma)-Wall$(comma)-Werror -Icsrc -I. \
		-c tests/cuda/driver_check.c -o /dev/null && echo "ok   driver_check"
