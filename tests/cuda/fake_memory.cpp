/* Device memory of the emulated driver: one range of addresses, closed to everybody.
 *
 * A block is whole pages between two closed ones, its data at the end, so that a step past it is a
 * fault; the rest of the first page is filled and looked at when the block is freed. Addresses are
 * used once: what was freed stays closed, and a late access is a fault too. */
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/cuda/fake_state.h"

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

extern "C" void hl_fake_open_begin(void)
{
    std::lock_guard<std::recursive_mutex> hold(fake::state().lock);
    fake::open_begin();
}

extern "C" void hl_fake_open_end(void)
{
    std::lock_guard<std::recursive_mutex> hold(fake::state().lock);
    fake::open_end();
}
