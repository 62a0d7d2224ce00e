/* Launches: kernels by name, host threads that share a launch's blocks, what a launcher gets wrong.
 *
 * The host threads of the pool sleep between launches; small launches stay on the caller's. One
 * launch runs at a time. The error that is kept is that of the block that comes first in the
 * launch's order. */
#include <condition_variable>
#include <map>
#include <thread>

#include "tests/cuda/emu/block.h"

namespace hl_emu
{

enum { MAX_WORKERS = 8, SMALL_LAUNCH = 512 /* threads: not worth another host thread */ };

struct pool {
    std::mutex lock;
    std::condition_variable wake, idle;
    std::vector<std::thread> threads;
    job *work = nullptr;
    uint64_t generation = 0;
    int n_wanted = 0, n_busy = 0;
    bool ends = false;
    hl_emu_counts counts = {};
    uint32_t order = HL_EMU_FORWARD;
    int n_workers = 0;
    std::string message;
    std::once_flag once;

    static pool &get()
    {
        static pool p;
        return p;
    }
    ~pool()
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            ends = true;
        }
        wake.notify_all();
        for (std::thread &t : threads) t.join();
        stop_worker();
    }
    void take_counts()
    {
        counts.blocks += now->counts.blocks, counts.threads += now->counts.threads;
        counts.switches += now->counts.switches;
        now->counts = {};
    }
    void serve(int index)
    {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            wake.wait(guard, [&] { return ends || (generation != seen && index < n_wanted); });
            if (ends) break;
            seen = generation;
            job *mine = work;
            guard.unlock();
            run_blocks(mine);
            guard.lock();
            take_counts();
            if (--n_busy == 0) idle.notify_all();
        }
        guard.unlock();
        stop_worker();
    }
    /* Runs the job on this thread and up to n - 1 others. */
    void run(job *mine, int n)
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            while ((int)threads.size() < n - 1) {
                int index = (int)threads.size();
                threads.emplace_back([this, index] { serve(index); });
            }
            work = mine, n_wanted = n_busy = n - 1;
            generation++;
        }
        if (n > 1) wake.notify_all();
        run_blocks(mine);
        std::unique_lock<std::mutex> guard(lock);
        take_counts();
        idle.wait(guard, [&] { return n_busy == 0; });
        counts.launches++;
    }
};

static int count_workers(const job *work)
{
    int n = pool::get().n_workers;
    if (n == 0) n = (int)std::thread::hardware_concurrency();
    if (n > MAX_WORKERS) n = MAX_WORKERS;
    if (work->n_blocks * work->n_threads < SMALL_LAUNCH) n = 1;
    if ((uint64_t)n > work->n_blocks) n = (int)work->n_blocks;
    return n < 1 ? 1 : n;
}

/* ---- kernels by name ---- */

struct registry {
    std::mutex lock;
    std::map<std::string, hl_emu_kernel> kernels;
    std::vector<std::string> fresh;
    static registry &get()
    {
        static registry r;
        return r;
    }
};

void add_kernel(const char *name, unsigned max_threads, void (*f)(), invoke_fn invoke,
                const size_t *sizes, int n)
{
    registry &r = registry::get();
    std::lock_guard<std::mutex> guard(r.lock);
    r.kernels[name] = {name, max_threads, f, invoke, sizes, n};
    r.fresh.push_back(name);
}
void remove_kernel(const char *name, void (*f)())
{
    registry &r = registry::get();
    std::lock_guard<std::mutex> guard(r.lock);
    auto at = r.kernels.find(name);
    if (at != r.kernels.end() && at->second.f == f) r.kernels.erase(at);
}

static uint64_t find_multiplier(uint64_t n, uint32_t seed)
{
    auto gcd = [](uint64_t a, uint64_t b) {
        while (b) {
            uint64_t rest = a % b;
            a = b, b = rest;
        }
        return a;
    };
    uint64_t m = seed % n + 1;
    while (gcd(m, n) != 1) m++;
    return m;
}

/* What the launcher got wrong; empty: nothing. */
static std::string check_launch(const hl_emu_kernel *k, hl_emu_dim grid, hl_emu_dim threads,
                                size_t shared_bytes)
{
    char text[160] = "";
    uint64_t n = (uint64_t)threads.x * threads.y * threads.z;
    if (threads.y != 1 || threads.z != 1)
        snprintf(text, sizeof text, "a block is a row of threads, got (%u,%u,%u)", threads.x,
                 threads.y, threads.z);
    else if (n < 1 || n > k->max_threads || n > MAX_THREADS)
        snprintf(text, sizeof text, "%llu threads a block, at most %u", (unsigned long long)n,
                 k->max_threads);
    else if (!grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFFu || grid.y > 65535 ||
             grid.z > 65535)
        snprintf(text, sizeof text, "a grid of (%u,%u,%u)", grid.x, grid.y, grid.z);
    else if (shared_bytes > DYNAMIC_MAX)
        snprintf(text, sizeof text, "%zu bytes of dynamic shared memory, at most %d", shared_bytes,
                 DYNAMIC_MAX);
    return text[0] ? k->name + ": " + text : std::string();
}

} // namespace hl_emu

using namespace hl_emu;

void hl_emu_set_order(uint32_t order)
{
    pool::get().order = order;
}
void hl_emu_set_workers(int n)
{
    pool::get().n_workers = n;
}
const hl_emu_kernel *hl_emu_find(const char *name)
{
    registry &r = registry::get();
    std::lock_guard<std::mutex> guard(r.lock);
    auto at = r.kernels.find(name);
    return at == r.kernels.end() ? nullptr : &at->second;
}
const hl_emu_kernel *hl_emu_at(int index)
{
    registry &r = registry::get();
    std::lock_guard<std::mutex> guard(r.lock);
    if (index < 0 || (size_t)index >= r.kernels.size()) return nullptr;
    return &std::next(r.kernels.begin(), index)->second;
}
const hl_emu_kernel *hl_emu_take_new(void)
{
    registry &r = registry::get();
    std::lock_guard<std::mutex> guard(r.lock);
    while (!r.fresh.empty()) {
        auto at = r.kernels.find(r.fresh.back());
        r.fresh.pop_back();
        if (at != r.kernels.end()) return &at->second;
    }
    return nullptr;
}
const char *hl_emu_name(const hl_emu_kernel *kernel)
{
    return kernel->name.c_str();
}
int hl_emu_max_threads(const hl_emu_kernel *kernel)
{
    return (int)kernel->max_threads;
}
int hl_emu_param_count(const hl_emu_kernel *kernel)
{
    return kernel->n_params;
}
size_t hl_emu_param_bytes(const hl_emu_kernel *kernel, int i)
{
    return kernel->sizes[i];
}
const char *hl_emu_error(void)
{
    return pool::get().message.c_str();
}
hl_emu_counts hl_emu_counters(void)
{
    return pool::get().counts;
}

int hl_emu_launch(const hl_emu_kernel *kernel, hl_emu_dim grid, hl_emu_dim threads,
                  size_t shared_bytes, void **args)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> guard(one_at_a_time);
    pool &p = pool::get();
    std::call_once(p.once, install_handler);
    p.message = check_launch(kernel, grid, threads, shared_bytes);
    if (!p.message.empty()) return -1;
    job work;
    work.kernel = kernel, work.args = args, work.grid = grid, work.n_threads = threads.x;
    work.dynamic_bytes = shared_bytes, work.order = p.order;
    work.n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    work.multiplier = find_multiplier(work.n_blocks, p.order * 2654435761u);
    work.shift = p.order % work.n_blocks;
    p.run(&work, count_workers(&work));
    p.message = work.message;
    return work.has_failed ? -1 : 0;
}
