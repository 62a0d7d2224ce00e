/* Memory of the emulated driver, and copies. Device memory is one range of addresses, closed to
 * everybody; a device address is a host address.
 *
 * A block is whole pages between two closed ones, its data at the end, so that a step past it is a
 * fault; the rest of the first page is filled and looked at when the block is freed. Addresses are
 * used once: what was freed stays closed, and a late access is a fault too. */
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/cuda/fake_state.h"

using namespace fake;

namespace fake
{

namespace
{

constexpr size_t RESERVED = (size_t)1 << 38;
constexpr size_t ALIGN = 256;
constexpr unsigned char PAD = 0xA5, NEW = 0xFF;

char *range_begin, *range_next;

size_t page()
{
    return (size_t)sysconf(_SC_PAGESIZE);
}
size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

bool reserve()
{
    if (range_begin) return true;
    void *made =
        mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return false;
    range_begin = range_next = (char *)made;
    return true;
}

void set_access(const Block &block, int access)
{
    mprotect(block.pages, block.page_bytes, access);
}

bool is_pad_whole(uintptr_t first, const Block &block)
{
    const unsigned char *pad = (const unsigned char *)block.pages;
    for (; (uintptr_t)pad < first; pad++)
        if (*pad != PAD) return false;
    for (pad = (const unsigned char *)first + block.bytes;
         (char *)pad < block.pages + block.page_bytes; pad++)
        if (*pad != PAD) return false;
    return true;
}

} // namespace

CUresult block_alloc(CUcontext context, size_t bytes, CUdeviceptr *out_ptr)
{
    State &s = state();
    size_t &used = s.used_bytes[context->device];
    if (!bytes) return complain(CUDA_ERROR_INVALID_VALUE, "an allocation of nothing");
    if (bytes > s.config.memory_bytes - used) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t page_bytes = round_up(round_up(bytes, ALIGN), page());
    if (!reserve() || range_next + page_bytes + 2 * page() > range_begin + RESERVED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    Block block = {bytes, range_next + page(), page_bytes, context};
    range_next = block.pages + page_bytes;
    set_access(block, PROT_READ | PROT_WRITE);
    char *first = block.pages + page_bytes - round_up(bytes, ALIGN);
    memset(block.pages, PAD, page_bytes);
    memset(first, NEW, bytes);
    if (!s.open_depth) set_access(block, PROT_NONE);
    s.blocks[(uintptr_t)first] = block;
    used += bytes;
    s.live.memory++;
    *out_ptr = (CUdeviceptr)(uintptr_t)first;
    return CUDA_SUCCESS;
}

CUresult block_free(CUdeviceptr ptr)
{
    State &s = state();
    auto found = s.blocks.find((uintptr_t)ptr);
    if (found == s.blocks.end())
        return complain(CUDA_ERROR_INVALID_VALUE, "device memory is freed that is not allocated");
    Block block = found->second;
    set_access(block, PROT_READ);
    if (!is_pad_whole(found->first, block))
        complain(CUDA_ERROR_UNKNOWN, "device memory was written beside a block");
    madvise(block.pages, block.page_bytes, MADV_DONTNEED);
    set_access(block, PROT_NONE);
    s.used_bytes[block.context->device] -= block.bytes;
    s.blocks.erase(found);
    s.live.memory--;
    return CUDA_SUCCESS;
}

void blocks_forget()
{
    for (auto &entry : state().blocks) {
        madvise(entry.second.pages, entry.second.page_bytes, MADV_DONTNEED);
        set_access(entry.second, PROT_NONE);
    }
    state().blocks.clear();
    state().used_bytes.clear();
}

bool is_device(const void *ptr, size_t bytes)
{
    State &s = state();
    auto next = s.blocks.upper_bound((uintptr_t)ptr);
    if (next == s.blocks.begin()) return false;
    --next;
    return (uintptr_t)ptr + bytes <= next->first + next->second.bytes;
}

bool is_reserved(const void *ptr)
{
    return range_begin && (char *)ptr >= range_begin && (char *)ptr < range_begin + RESERVED;
}

void open_begin()
{
    if (state().open_depth++) return;
    for (auto &entry : state().blocks) set_access(entry.second, PROT_READ | PROT_WRITE);
}

void open_end()
{
    if (--state().open_depth) return;
    for (auto &entry : state().blocks) set_access(entry.second, PROT_NONE);
}

} // namespace fake

namespace
{

bool is_pinned(const void *ptr, size_t bytes)
{
    State &s = state();
    auto next = s.pinned.upper_bound((uintptr_t)ptr);
    if (next == s.pinned.begin()) return false;
    --next;
    return (uintptr_t)ptr + bytes <= next->first + next->second;
}

/* One copy when its turn has come. Device addresses are looked at again: a graph may outlive the
 * memory that it was captured with. */
void run_copy(void *dst, const void *src, size_t bytes)
{
    bool good = (!is_reserved(dst) || is_device(dst, bytes)) &&
                (!is_reserved(src) || is_device(src, bytes));
    if (good)
        memcpy(dst, src, bytes);
    else
        die(CUDA_ERROR_ILLEGAL_ADDRESS, "a copy that runs after its memory was freed");
}

CUresult copy(void *dst, const void *src, size_t bytes, CUstream stream)
{
    State &s = state();
    bool from_pageable = !is_reserved(src) && !is_pinned(src, bytes);
    bool to_pageable = !is_reserved(dst) && !is_pinned(dst, bytes);
    bool is_pageable = from_pageable || to_pageable;
    if (s.streams.count(stream) && stream->graph && is_pageable) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "pageable memory in a capture");
    }
    /* A driver returns when a copy to pageable memory is there, and one from it may wait for the
     * stream before it is read. */
    s.syncs += is_pageable;
    s.pageable += is_pageable;
    if (!from_pageable) {
        CUresult status = submit(stream, [=] { run_copy(dst, src, bytes); });
        if (status != CUDA_SUCCESS || !to_pageable) return status;
        drain(stream, nullptr);
        return s.dead;
    }
    std::vector<char> data((const char *)src, (const char *)src + bytes);
    return submit(stream, [=] { run_copy(dst, data.data(), bytes); });
}

void *host(CUdeviceptr ptr)
{
    return (void *)(uintptr_t)ptr;
}

CUresult check_device(CUdeviceptr ptr, size_t bytes)
{
    if (is_device(host(ptr), bytes)) return CUDA_SUCCESS;
    return complain(CUDA_ERROR_INVALID_VALUE,
                    "an address that is not within a block of the device");
}

} // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
    CALL(CONTEXT);
    *out_total = s.config.memory_bytes;
    *out_free = *out_total - s.used_bytes[current()->device];
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    return block_alloc(current(), bytes, ptr);
}

/* The real one waits for the device too. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    RELEASE(CONTEXT);
    NOT_IN_CAPTURE;
    drain_all();
    CUresult freed = block_free(ptr);
    return result ? result : freed;
}

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (!bytes || flags)
        return complain(CUDA_ERROR_INVALID_VALUE, "pinned memory of nothing, or of another kind");
    *ptr = malloc(bytes);
    if (!*ptr) return CUDA_ERROR_OUT_OF_MEMORY;
    s.pinned[(uintptr_t)*ptr] = bytes;
    s.live.pinned++;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *ptr)
{
    RELEASE(CONTEXT);
    NOT_IN_CAPTURE;
    drain_all();
    if (!s.pinned.erase((uintptr_t)ptr))
        return complain(CUDA_ERROR_INVALID_VALUE, "pinned memory is freed that is not allocated");
    free(ptr);
    s.live.pinned--;
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    if (is_reserved(src))
        return complain(CUDA_ERROR_INVALID_VALUE, "a device address for a host's");
    return copy(host(dst), src, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(src, bytes)) return wrong;
    if (is_reserved(dst))
        return complain(CUDA_ERROR_INVALID_VALUE, "a device address for a host's");
    return copy(dst, host(src), bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    if (CUresult wrong = check_device(src, bytes)) return wrong;
    if (CUresult wrong = copy(host(dst), host(src), bytes, stream)) return wrong;
    return submit(stream, [=] { state().clock_ms += (double)bytes / (1 << 20); });
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    return submit(stream, [=] {
        if (is_device(host(dst), bytes))
            memset(host(dst), value, bytes);
        else
            die(CUDA_ERROR_ILLEGAL_ADDRESS, "a fill that runs after its memory was freed");
    });
}

/* ---- for tests and fake libraries ------------------------------------------------------------ */

bool hl_fake_is_device(const void *ptr, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    return is_device(ptr, bytes);
}

void hl_fake_open_begin(void)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    open_begin();
}

void hl_fake_open_end(void)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    open_end();
}

} // extern "C"
