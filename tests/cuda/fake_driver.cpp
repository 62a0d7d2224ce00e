/* The emulated driver's gate, devices and contexts, and what tests ask of it; fake_driver.h says
 * what is emulated, fake_state.h which file has which calls. */
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/cuda/fake_state.h"

using namespace fake;

namespace
{

thread_local std::vector<CUcontext> context_stack;

/* No context because making it current was what failed: then what gives back still does. */
bool push_failed()
{
    const char *name = state().failed_call;
    return name && !strcmp(name, "cuCtxPushCurrent_v2");
}

bool must_fail(const char *name, CUresult *out_error)
{
    State &s = state();
    s.fail_seen++;
    bool by_count =
        s.fail_at && (s.fail_seen == s.fail_at || (s.fail_sticky && s.fail_seen > s.fail_at));
    bool by_name = !s.fail_name.empty() && s.fail_name == name;
    if (!by_count && !by_name) return false;
    s.failed_call = name;
    *out_error = by_count ? s.fail_error : s.fail_name_error;
    return true;
}

} // namespace

namespace fake
{

State &state()
{
    static State *made = new State; /* never destroyed: calls may come while the process ends */
    return *made;
}

CUresult complain(CUresult error, const std::string &what)
{
    if (state().message.empty()) state().message = what;
    return error;
}

CUresult pass(const char *name, Needs needs)
{
    State &s = state();
    s.calls[name]++;
    if (s.hook_at && --s.hook_at == 0) s.hook(s.hook_context);
    if (s.is_held && s.is_held()) complain(CUDA_SUCCESS, std::string(name) + " with " + s.held);
    CUresult error;
    if (must_fail(name, &error)) return error;
    if (needs == NOTHING) return CUDA_SUCCESS;
    if (s.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs == DRIVER) return CUDA_SUCCESS;
    if (!current() && !push_failed())
        return complain(CUDA_ERROR_INVALID_CONTEXT, std::string(name) + " without a context");
    return s.dead;
}

CUcontext current()
{
    return context_stack.empty() ? nullptr : context_stack.back();
}

} // namespace fake

extern "C" {

/* ---- driver, devices, contexts --------------------------------------------------------------- */

CUresult cuInit(unsigned)
{
    CALL(NOTHING);
    if (s.process && s.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s.config.n_devices) hl_fake_reset(nullptr);
    if (s.config.n_devices < 0) return CUDA_ERROR_NO_DEVICE;
    s.process = getpid();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    CALL(NOTHING);
    if (!s.config.n_devices) hl_fake_reset(nullptr);
    *version = s.config.cuda;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    CALL(NOTHING);
    *text = nullptr;
#define NAME(name, value)                                                                          \
    if (!strncmp(#name, "CUDA_", 5) && error == value) return *text = #name, CUDA_SUCCESS;
    HL_CUDA_CONSTANTS(NAME)
#undef NAME
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult, const char **text)
{
    CALL(NOTHING);
    *text = "emulated";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CALL(DRIVER);
    *count = s.config.n_devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CALL(DRIVER);
    if (ordinal < 0 || ordinal >= s.config.n_devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice)
{
    CALL(DRIVER);
    snprintf(name, (size_t)bytes, "Emulated GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice)
{
    CALL(DRIVER);
    *bytes = s.config.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice)
{
    CALL(DRIVER);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = s.config.arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = s.config.arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = s.config.n_multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        if (s.config.memory_khz < 0) return CUDA_ERROR_INVALID_VALUE;
        *value = s.config.memory_khz;
        break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 8; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 64 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 64 << 10; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CALL(DRIVER);
    CUcontext &made = s.contexts[device];
    if (!made) {
        if (s.config.context_bytes > s.config.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
        made = new CUctx_st{device, 0};
        s.used_bytes[device] += s.config.context_bytes;
        s.live.contexts++;
    }
    made->retained++;
    *context = made;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    RELEASE(DRIVER);
    auto found = s.contexts.find(device);
    if (found == s.contexts.end() || !found->second)
        return complain(CUDA_ERROR_INVALID_CONTEXT, "a context is released that is not retained");
    if (--found->second->retained) return result;
    delete found->second;
    s.contexts.erase(found);
    s.used_bytes[device] -= s.config.context_bytes;
    s.live.contexts--;
    if (s.contexts.empty()) s.dead = CUDA_SUCCESS;
    return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CALL(DRIVER);
    auto found = s.contexts.find(context->device);
    if (found == s.contexts.end() || found->second != context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    s.live.pushed++;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    RELEASE(DRIVER);
    if (context_stack.empty())
        return complain(CUDA_ERROR_INVALID_CONTEXT, "a context is popped that was not pushed");
    *context = context_stack.back();
    context_stack.pop_back();
    s.live.pushed--;
    return result;
}

bool hl_fake_has_context(void)
{
    return current() != nullptr;
}

void hl_fake_complain(const char *what)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    complain(CUDA_ERROR_INVALID_VALUE, what);
}

/* ---- for tests ------------------------------------------------------------------------------- */

void hl_fake_reset(const hl_fake_config *config)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    State &s = state();
    blocks_forget();
    hl_fake_config given = config ? *config : hl_fake_config{};
    s.config = {given.n_devices ? given.n_devices : 1,
                given.arch ? given.arch : 90,
                given.cuda ? given.cuda : 13000,
                given.memory_bytes ? given.memory_bytes : (size_t)1 << 30,
                given.context_bytes ? given.context_bytes : (size_t)64 << 20,
                given.n_multiprocessors ? given.n_multiprocessors : 4,
                given.memory_khz ? given.memory_khz : 1,
                given.takes_code};
    s.process = 0;
    s.live = {};
    s.calls.clear();
    s.syncs = s.pageable = 0;
    s.dead = CUDA_SUCCESS;
    s.message.clear();
    s.contexts.clear();
    s.pinned.clear();
    s.streams.clear();
    hl_fake_fail(0, false, CUDA_SUCCESS);
    hl_fake_fail_call(nullptr, CUDA_SUCCESS);
}

int64_t hl_fake_fail(int64_t k, bool sticky, CUresult error)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    State &s = state();
    int64_t seen = s.fail_seen;
    s.fail_at = k;
    s.fail_sticky = sticky;
    s.fail_error = error;
    s.fail_seen = 0;
    s.failed_call = nullptr;
    return seen;
}

bool hl_fake_hook(int64_t k, void (*hook)(void *), void *context)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    bool is_called = state().hook && !state().hook_at;
    state().hook_at = k;
    state().hook = hook;
    state().hook_context = context;
    return is_called;
}

void hl_fake_forbid(int (*is_held)(void), const char *what)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    state().is_held = is_held;
    state().held = what;
}

void hl_fake_fail_call(const char *symbol, CUresult error)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    state().fail_name = symbol ? symbol : "";
    state().fail_name_error = error;
}

const char *hl_fake_failed_call(void)
{
    return state().failed_call;
}
hl_fake_live hl_fake_get_live(void)
{
    return state().live;
}

int hl_fake_live_sum(void)
{
    const hl_fake_live &live = state().live;
    return live.contexts + live.pushed + live.libraries + live.memory + live.pinned + live.streams +
           live.events + live.graphs + live.execs;
}

int64_t hl_fake_calls(const char *symbol)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    if (symbol) return state().calls[symbol];
    int64_t sum = 0;
    for (const auto &entry : state().calls) sum += entry.second;
    return sum;
}

int64_t hl_fake_syncs(void)
{
    return state().syncs;
}

int64_t hl_fake_pageable(void)
{
    return state().pageable;
}

const char *hl_fake_message(void)
{
    return state().message.c_str();
}
void hl_fake_message_clear(void)
{
    state().message.clear();
}

} // extern "C"
