/* The emulated block: fibers, barrier, warp collectives, watched shared memory (emu.h says what
 * for).
 *
 * A host thread has one block; its threads are fibers that never change host threads. A stack is
 * taken when a fiber first runs and given back when it ends, last in first out: a kernel that never
 * waits runs all its threads on one hot stack. Stack tops are staggered, or all would share one
 * cache set. Ready threads are one bit mask per warp; a warp runs until none of its lanes can.
 *
 * Shared memory is watched at every access: reading what nothing wrote, and two threads at one
 * element with no barrier (or collective of their warp) between, one of them writing. So a race is
 * found in any order of threads, not only where the order changes the bits.
 *
 * A fault of the host (bad address, division by zero, stack overflow) in a fiber leaves it by
 * siglongjmp and becomes the launch's error. Under AddressSanitizer its report comes instead, with
 * the thread named behind it. */
#include "tests/cuda/emu/block.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace hl_emu
{

__thread block *now;

const thread_id &self()
{
    return now->running->id;
}
int lane()
{
    return now->running->id.thread % WARP;
}

/* ---- fibers ---- */

static void fiber_main();

#ifdef HL_EMU_UCONTEXT
struct fiber_context {
    ucontext_t c;
};
static void switch_to(fiber *t, bool is_fresh)
{
    fiber_context *f = (fiber_context *)t->stack;
    if (is_fresh) {
        getcontext(&f->c);
        f->c.uc_stack.ss_sp = (char *)t->stack + sizeof *f;
        f->c.uc_stack.ss_size = STACK_BYTES - sizeof *f;
        f->c.uc_link = nullptr;
        makecontext(&f->c, fiber_main, 0);
    }
    swapcontext(&now->main_context, &f->c);
}
static void switch_back(fiber *t)
{
    swapcontext(&((fiber_context *)t->stack)->c, &now->main_context);
}
#else
extern "C" void hl_emu_switch(void **save_sp, void *load_sp);
asm(R"(
    .text
    .globl hl_emu_switch
    .type hl_emu_switch,@function
hl_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size hl_emu_switch, .-hl_emu_switch
)");
static void switch_to(fiber *t, bool is_fresh)
{
    if (is_fresh) {
        size_t stagger = (size_t)(t->id.thread % 61) * 192;
        uintptr_t top = ((uintptr_t)t->stack + STACK_BYTES - stagger) & ~(uintptr_t)63;
        void **sp = (void **)top;
        *--sp = nullptr; /* the stack pointer is 8 mod 16 at the entry */
        *--sp = (void *)fiber_main;
        for (int i = 0; i < 6; i++) *--sp = nullptr;
        t->sp = sp;
    }
    hl_emu_switch(&now->main_sp, t->sp);
}
static void switch_back(fiber *t)
{
    hl_emu_switch(&t->sp, now->main_sp);
}
#endif

static void enter(fiber *t, bool is_fresh)
{
    now->running = t;
#ifdef __SANITIZE_ADDRESS__
    if (is_fresh) __asan_unpoison_memory_region(t->stack, STACK_BYTES); /* frames of the last one */
    __sanitizer_start_switch_fiber(&now->main_fake, t->stack, STACK_BYTES);
    switch_to(t, is_fresh);
    __sanitizer_finish_switch_fiber(now->main_fake, nullptr, nullptr);
#else
    switch_to(t, is_fresh);
#endif
}

static void leave(fiber *t, bool for_good)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(for_good ? nullptr : &t->fake_stack, now->main_bottom,
                                   now->main_bytes);
    switch_back(t);
    __sanitizer_finish_switch_fiber(t->fake_stack, nullptr, nullptr);
#else
    (void)for_good;
    switch_back(t);
#endif
}

static void *take_stack()
{
    if (!now->free_stacks.empty()) {
        void *stack = now->free_stacks.back();
        now->free_stacks.pop_back();
        return stack;
    }
    char *p = (char *)mmap(nullptr, STACK_BYTES + STACK_GUARD, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    mprotect(p, STACK_GUARD, PROT_NONE); /* an overrun faults instead of corrupting */
    return p + STACK_GUARD;
}

/* ---- errors: the one of the block that comes first in the launch's order is kept ---- */

static hl_emu_dim block_at(const job *work, uint64_t position)
{
    uint64_t i = position;
    if (work->order == HL_EMU_REVERSE) i = work->n_blocks - 1 - position;
    if (work->order > HL_EMU_REVERSE)
        i = (position * work->multiplier + work->shift) % work->n_blocks;
    uint64_t plane = (uint64_t)work->grid.x * work->grid.y;
    return {(unsigned)(i % work->grid.x), (unsigned)(i % plane / work->grid.x),
            (unsigned)(i / plane)};
}

static void record(const char *format, va_list ap)
{
    char text[768];
    hl_emu_dim at = block_at(now->work, now->position);
    int n = snprintf(text, sizeof text, "%s: block (%u,%u,%u)", now->work->kernel->name.c_str(),
                     at.x, at.y, at.z);
    if (now->running)
        n += snprintf(text + n, sizeof text - (size_t)n, " thread %d", now->running->id.thread);
    n += snprintf(text + n, sizeof text - (size_t)n, ": ");
    vsnprintf(text + n, sizeof text - (size_t)n, format, ap);
    now->failed = true;
    std::lock_guard<std::mutex> guard(now->work->lock);
    if (now->position < now->work->failed_at) {
        now->work->failed_at = now->position;
        now->work->message = text;
    }
    now->work->has_failed = true;
}

void fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    record(format, ap);
    va_end(ap);
    leave(now->running, true);
    __builtin_unreachable();
}

/* From outside the fibers. */
static void fail_block(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail_block(const char *format, ...)
{
    now->running = nullptr;
    va_list ap;
    va_start(ap, format);
    record(format, ap);
    va_end(ap);
}

/* "0-31,40 (33 threads)". The text lasts until the next call: a fiber that fails never comes back
 * to free anything. */
static const char *list_threads(const uint32_t *set)
{
    static thread_local char text[192];
    int used = 0, n_shown = 0, total = 0;
    auto has = [&](int t) { return t < now->n_threads && (set[t / WARP] >> t % WARP & 1); };
    for (int t = 0; t < now->n_threads; t++) {
        if (!has(t)) continue;
        int end = t;
        while (has(end + 1)) end++;
        total += end - t + 1;
        if (n_shown++ < 6) {
            used +=
                snprintf(text + used, sizeof text - (size_t)used, n_shown > 1 ? ",%d" : "%d", t);
            if (end > t) used += snprintf(text + used, sizeof text - (size_t)used, "-%d", end);
        }
        t = end;
    }
    snprintf(text + used, sizeof text - (size_t)used, " (%d threads)", total);
    return text;
}

/* ---- barrier and warp collectives ---- */

static void wait_here()
{
    fiber *t = now->running;
    now->ready[t->id.thread / WARP] &= ~(1u << t->id.thread % WARP);
    now->counts.switches++;
    leave(t, false);
}

static bool is_same(place a, place b)
{
    return a.line == b.line && !strcmp(a.file, b.file);
}

void barrier(place at, int first, int n)
{
    barrier_state *b = now->barriers + (n == now->n_threads ? MAX_WARPS : first / WARP);
    int end_warp = (first + n + WARP - 1) / WARP, thread = now->running->id.thread;
    for (int w = first / WARP; w < end_warp; w++)
        if (now->done[w])
            fail("waits at the barrier of line %d, but threads %s have exited", at.line,
                 list_threads(now->done));
    if (b->n_waiting && !is_same(b->at, at))
        fail("is at the barrier of line %d while %d others wait at line %d", at.line, b->n_waiting,
             b->at.line);
    *b = {first, n, b->n_waiting + 1, at};
    if (b->n_waiting < n) {
        now->at_barrier[thread / WARP] |= 1u << thread % WARP;
        wait_here();
        return;
    }
    b->n_waiting = 0;
    now->last_epoch++;
    for (int w = first / WARP; w < end_warp; w++) {
        now->epoch[w] = now->last_epoch;
        now->ready[w] |= now->at_barrier[w];
        now->at_barrier[w] = 0;
    }
}

/* One where threads wait, which waits for this thread; ALL: for any. NULL: none. */
enum { ALL = -1 };
static const barrier_state *find_barrier(int thread)
{
    for (const barrier_state &b : now->barriers)
        if (b.n_waiting && (thread == ALL || (thread >= b.first && thread < b.first + b.n)))
            return &b;
    return nullptr;
}

static uint32_t lanes_of(int w)
{
    int n = now->n_threads - w * WARP;
    return n >= WARP ? ~0u : (1u << n) - 1;
}

static int find_source(const fiber *t, int lane)
{
    switch (t->waits_for) {
    case OP_SHUFFLE: return t->arg & 31;
    case OP_SHUFFLE_XOR: return (lane ^ t->arg) < WARP ? lane ^ t->arg : lane;
    case OP_SHUFFLE_UP: return lane - t->arg >= 0 ? lane - t->arg : lane;
    default: return lane;
    }
}

static void multiply(fiber *lanes)
{
    float a[256], b[256];
    for (int l = 0; l < WARP; l++) {
        memcpy(a + 8 * l, lanes[l].a->v, 32);
        memcpy(b + 8 * l, lanes[l].b->v, 32);
    }
    for (int l = 0; l < WARP; l++) {
        float *c = lanes[l].c->v;
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 8; i++) c[i] += a[l / 2 * 16 + k] * b[k * 16 + l % 2 * 8 + i];
    }
}

/* prim.h says what a lane holds; the sums go by rows of b. */
static void multiply_fragments(fiber *lanes)
{
    float a[16][16], b[16][8];
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 8; i++) {
            int g = l / 4, t = l % 4, word = i / 2;
            a[g + word % 2 * 8][2 * t + i % 2 + word / 2 * 8] = lanes[l].a->v[i];
            if (i < 4) b[2 * t + i % 2 + word * 8][g] = lanes[l].b->v[i];
        }
    for (int l = 0; l < WARP; l++)
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 4; i++)
                lanes[l].of_fragment[i] += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
}

/* All lanes of the mask are here, the running one last. */
static void complete(int w, uint32_t mask)
{
    fiber *lanes = now->threads + w * WARP;
    op o = now->running->waits_for;
    uint32_t votes = 0;
    for (int l = 0; l < WARP; l++)
        if ((mask >> l & 1) && lanes[l].votes) votes |= 1u << l;
    if (o == OP_MMA) multiply(lanes);
    if (o == OP_FRAGMENT_MMA) multiply_fragments(lanes);
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1)) continue;
        int from = find_source(lanes + l, l);
        if (!(mask >> from & 1)) {
            fail_block("thread %d: the shuffle of line %d reads lane %d, which mask 0x%08x leaves "
                       "out",
                       lanes[l].id.thread, lanes[l].at.line, from, mask);
            return;
        }
        memcpy(lanes[l].result, lanes[from].value, sizeof lanes[l].result);
    }
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1)) continue;
        lanes[l].votes = votes;
        lanes[l].waits_for = OP_NONE;
    }
    now->meeting[w] &= ~mask;
    now->ready[w] |= mask;
    now->warp_epoch[w]++;
}

static void meet(op o, uint32_t mask, place at)
{
    fiber *t = now->running;
    int w = t->id.thread / WARP, lane = t->id.thread % WARP;
    fiber *lanes = now->threads + w * WARP;
    if (!(mask >> lane & 1))
        fail("line %d: mask 0x%08x leaves out its own lane %d", at.line, mask, lane);
    if (mask & ~lanes_of(w))
        fail("line %d: mask 0x%08x names lanes 0x%08x that the block of %d threads lacks", at.line,
             mask, mask & ~lanes_of(w), now->n_threads);
    if (mask & now->done[w])
        fail("line %d: mask 0x%08x names lanes 0x%08x that have exited", at.line, mask,
             mask & now->done[w]);
    t->waits_for = o, t->mask = mask, t->at = at;
    now->meeting[w] |= 1u << lane;
    if ((now->meeting[w] & mask) != mask) {
        wait_here();
        return;
    }
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1)) continue;
        if (lanes[l].waits_for != o || lanes[l].mask != mask || !is_same(lanes[l].at, at))
            fail("is at the collective of line %d (mask 0x%08x) while lane %d waits at line %d "
                 "(mask 0x%08x)",
                 at.line, mask, l, lanes[l].at.line, lanes[l].mask);
    }
    complete(w, mask);
    if (now->failed) leave(t, true);
}

void shuffle(op o, uint32_t mask, const void *value, void *out, size_t bytes, int arg, place at)
{
    fiber *t = now->running;
    memcpy(t->value, value, bytes);
    t->arg = arg, t->votes = 0;
    meet(o, mask, at);
    memcpy(out, t->result, bytes);
}
uint32_t ballot(uint32_t mask, bool predicate, place at)
{
    fiber *t = now->running;
    t->votes = predicate;
    meet(OP_BALLOT, mask, at);
    return t->votes;
}
void warp_sync(uint32_t mask, place at)
{
    now->running->votes = 0;
    meet(OP_SYNC, mask, at);
}
void mma_meet(op o, place at)
{
    now->running->votes = 0;
    meet(o, HL_WARP_ALL, at);
}
void mma(tile *c, const tile *a, const tile *b, place at)
{
    fiber *t = now->running;
    t->a = a, t->b = b, t->c = c;
    mma_meet(OP_MMA, at);
}
void fragment_mma(float *c, const tile *a, const tile *b, place at)
{
    fiber *t = now->running;
    t->a = a, t->b = b, t->of_fragment = c;
    mma_meet(OP_FRAGMENT_MMA, at);
}

/* ---- shared memory: NaN at the start, canaries around every array, every element watched ---- */

static shared_array *add_shared(const void *key, int part, size_t bytes, size_t element,
                                const char *name)
{
    size_t room = (bytes + 31) / 32 * 32, n = bytes / element;
    if (now->n_shared == MAX_SHARED) fail("has more than %d shared arrays", now->n_shared);
    unsigned char *p = now->arena + now->arena_used + CANARY_BYTES;
    memset(p - CANARY_BYTES, CANARY, CANARY_BYTES);
    memset(p, 0xFF, bytes);
    memset(p + bytes, CANARY, room - bytes + CANARY_BYTES);
    now->arena_used += room + CANARY_BYTES;
    cell *cells = now->cells.data() + now->cells_used;
    for (size_t i = 0; i < n; i++) cells[i] = {0, 0, 0, 0, NOBODY, NOBODY, 0};
    now->cells_used += n;
    shared_array *array = now->shared + now->n_shared++;
    *array = {key, part, p, bytes, name, cells, false};
    return array;
}

shared_array *find_shared(const void *key, size_t bytes, size_t element, const char *name)
{
    size_t total = bytes;
    for (int i = 0; i < now->n_shared; i++) {
        if (now->shared[i].key == key) return now->shared + i;
        if (now->shared[i].key) total += now->shared[i].n_bytes;
    }
    if (total > STATIC_MAX)
        fail("has %zu bytes of static shared memory, at most %d", total, STATIC_MAX);
    return add_shared(key, 0, bytes, element, name);
}

shared_array *find_dynamic(size_t element, const char *name, int part, int n)
{
    for (int i = 0; i < now->n_shared; i++)
        if (!now->shared[i].key && now->shared[i].part == part) return now->shared + i;
    return add_shared(nullptr, part, now->work->dynamic_bytes / (size_t)n, element, name);
}

static bool is_ordered_write(const cell *c, int thread)
{
    int w = thread / WARP;
    return c->writer == NOBODY || c->writer == thread || c->write_block != now->epoch[w] ||
           (c->writer / WARP == w && c->write_warp != now->warp_epoch[w]);
}

void note_read(shared_array *array, size_t i)
{
    cell *c = array->cells + i;
    int thread = now->running->id.thread, w = thread / WARP;
    if (c->writer == NOBODY && !array->has_leaked)
        fail("reads %s[%zu], which nothing has written", array->name, i);
    if (!is_ordered_write(c, thread))
        fail("reads %s[%zu], which thread %d wrote with no barrier between", array->name, i,
             c->writer);
    bool is_first = c->reader == NOBODY || c->read_block != now->epoch[w];
    if (is_first || (c->reader_warp == w && c->read_warp != now->warp_epoch[w]))
        c->reader = (int16_t)thread, c->reader_warp = (int16_t)w;
    else if (c->reader != thread)
        c->reader = MANY, c->reader_warp = c->reader_warp == w ? (int16_t)w : (int16_t)MANY;
    c->read_block = now->epoch[w];
    c->read_warp = now->warp_epoch[w];
}

void note_write(shared_array *array, size_t i)
{
    cell *c = array->cells + i;
    int thread = now->running->id.thread, w = thread / WARP;
    if (!is_ordered_write(c, thread))
        fail("writes %s[%zu], which thread %d wrote with no barrier between", array->name, i,
             c->writer);
    bool is_free = c->reader == NOBODY || c->reader == thread || c->read_block != now->epoch[w] ||
                   (c->reader_warp == w && c->read_warp != now->warp_epoch[w]);
    if (!is_free && c->reader == MANY)
        fail("writes %s[%zu], which other threads read with no barrier between", array->name, i);
    if (!is_free)
        fail("writes %s[%zu], which thread %d read with no barrier between", array->name, i,
             c->reader);
    c->writer = (int16_t)thread;
    c->write_block = now->epoch[w];
    c->write_warp = now->warp_epoch[w];
}

static void check_canaries()
{
    for (int i = 0; i < now->n_shared; i++) {
        const shared_array *array = now->shared + i;
        for (size_t k = 1; k <= CANARY_BYTES; k++) {
            if (array->bytes[-(ptrdiff_t)k] == CANARY &&
                array->bytes[array->n_bytes + k - 1] == CANARY)
                continue;
            fail_block("%s (%zu bytes) was written outside its bounds", array->name,
                       array->n_bytes);
            return;
        }
    }
}

/* ---- asynchronous copies: performed at the wait, NaN until then, so a forgotten wait shows ----
 */

void check_aligned(const void *p, size_t bytes)
{
    if ((uintptr_t)p % bytes) fail("a vector of %zu bytes is misaligned", bytes);
}

void async_copy(void *dst, const void *src, size_t bytes)
{
    if (((uintptr_t)dst | (uintptr_t)src) % bytes)
        fail("an asynchronous copy of %zu bytes is misaligned", bytes);
    if ((unsigned char *)dst < now->arena || (unsigned char *)dst >= now->arena + ARENA_BYTES)
        fail("an asynchronous copy goes to no shared memory");
    memset(dst, 0xFF, bytes);
    int owner = now->running->id.thread;
    now->pending.push_back({dst, src, bytes, owner, now->groups[owner]});
}
void async_commit()
{
    now->groups[now->running->id.thread]++;
}
void async_wait(int left)
{
    int owner = now->running->id.thread;
    size_t n_kept = 0;
    for (const async_op &a : now->pending) {
        if (a.owner == owner && a.group < now->groups[owner] - left)
            memcpy(a.dst, a.src, a.bytes);
        else
            now->pending[n_kept++] = a;
    }
    now->pending.resize(n_kept);
}

/* ---- one block ---- */

static void run_thread()
{
    fiber *t = now->running;
    int w = t->id.thread / WARP;
    uint32_t bit = 1u << t->id.thread % WARP;
    now->work->kernel->invoke(now->work->kernel->f, now->work->args);
    for (const async_op &a : now->pending)
        if (a.owner == t->id.thread) fail("exits with an asynchronous copy never waited for");
    if (const barrier_state *b = find_barrier(t->id.thread))
        fail("exits while threads %s wait at the barrier of line %d", list_threads(now->at_barrier),
             b->at.line);
    for (int l = 0; l < WARP; l++) {
        const fiber *o = now->threads + w * WARP + l;
        if ((now->meeting[w] >> l & 1) && (o->mask & bit))
            fail("exits while lane %d waits for it at line %d (mask 0x%08x)", l, o->at.line,
                 o->mask);
    }
    now->done[w] |= bit, now->ready[w] &= ~bit;
    now->n_done++;
}

static void fiber_main()
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &now->main_bottom, &now->main_bytes);
#endif
    fiber *t = now->running;
    run_thread();
    leave(t, true);
}

static uint32_t draw()
{
    now->rng = now->rng * 1664525u + 1013904223u;
    return now->rng >> 8;
}

static int pick(uint32_t set)
{
    if (now->work->order == HL_EMU_FORWARD) return __builtin_ctz(set);
    if (now->work->order == HL_EMU_REVERSE) return 31 - __builtin_clz(set);
    for (uint32_t skip = draw() % (uint32_t)__builtin_popcount(set); skip; skip--) set &= set - 1;
    return __builtin_ctz(set);
}

static void report_stuck()
{
    for (int t = 0; t < now->n_threads; t++) {
        const fiber *o = now->threads + t;
        int w = t / WARP;
        if (!(now->meeting[w] >> t % WARP & 1)) continue;
        fail_block("deadlock: thread %d waits at the collective of line %d (mask 0x%08x) for lanes "
                   "0x%08x of warp %d, which do not come%s",
                   t, o->at.line, o->mask, o->mask & ~now->meeting[w], w,
                   find_barrier(ALL) ? ": others wait at a barrier" : "");
        return;
    }
    fail_block("deadlock: threads %s wait at the barrier of line %d", list_threads(now->at_barrier),
               find_barrier(ALL)->at.line);
}

static void start_block()
{
    job *work = now->work;
    now->n_threads = (int)work->n_threads;
    now->n_warps = (now->n_threads + WARP - 1) / WARP;
    now->last_epoch = 1, now->n_done = now->n_shared = 0;
    for (barrier_state &b : now->barriers) b.n_waiting = 0;
    now->rng = work->order * 2654435761u ^ (uint32_t)(now->position * 40503u);
    now->arena_used = now->cells_used = 0;
    now->pending.clear();
    now->failed = false;
    hl_emu_dim at = block_at(work, now->position);
    for (int w = 0; w < now->n_warps; w++) {
        now->ready[w] = lanes_of(w);
        now->started[w] = now->at_barrier[w] = now->meeting[w] = now->done[w] = 0;
        now->epoch[w] = now->warp_epoch[w] = 1;
    }
    for (int t = 0; t < now->n_threads; t++) {
        now->threads[t].id = {t, now->n_threads, at, work->grid};
        now->threads[t].waits_for = OP_NONE;
        now->groups[t] = 0;
    }
}

/* Runs warp w until none of its lanes can go on. False: none could. */
static bool run_warp(int w)
{
    bool has_run = false;
    while (now->ready[w] && !now->failed) {
        int l = pick(now->ready[w]);
        fiber *t = now->threads + w * WARP + l;
        bool is_fresh = !(now->started[w] >> l & 1);
        if (is_fresh && !(t->stack = take_stack())) {
            fail_block("no memory for a stack");
            return false;
        }
        now->started[w] |= 1u << l;
        enter(t, is_fresh);
        now->running = nullptr;
        has_run = true;
        if (now->done[w] >> l & 1) {
            now->free_stacks.push_back(t->stack);
            now->started[w] &= ~(1u << l); /* its stack is back */
        }
    }
    return has_run;
}

static void run_block()
{
    start_block();
    uint32_t order = now->work->order;
    if (sigsetjmp(now->escape, 0) == 0) {
        while (now->n_done < now->n_threads && !now->failed) {
            bool has_run = false;
            int turn = order > HL_EMU_REVERSE ? (int)(draw() % (uint32_t)now->n_warps) : 0;
            for (int i = 0; i < now->n_warps && !now->failed; i++) {
                int w = order == HL_EMU_REVERSE ? now->n_warps - 1 - i : (i + turn) % now->n_warps;
                has_run = run_warp(w) || has_run;
            }
            if (!has_run && !now->failed) report_stuck();
        }
    }
    now->running = nullptr;
    for (int t = 0; t < now->n_threads; t++)
        if (now->started[t / WARP] >> t % WARP & 1)
            now->free_stacks.push_back(now->threads[t].stack);
    if (!now->failed) check_canaries();
    now->counts.blocks++;
    now->counts.threads += (uint64_t)now->n_threads;
}

/* ---- faults of the host ---- */

#ifdef __SANITIZE_ADDRESS__
static void name_thread()
{
    if (!now || !now->running) return;
    hl_emu_dim at = now->running->id.block;
    char text[256];
    int n = snprintf(text, sizeof text, "in the emulated kernel %s, block (%u,%u,%u) thread %d\n",
                     now->work->kernel->name.c_str(), at.x, at.y, at.z, now->running->id.thread);
    if (write(2, text, (size_t)n) < 0) return;
}
void install_handler()
{
    __sanitizer_set_death_callback(name_thread);
}
static void give_signal_stack()
{
}
#else
static void fail_by_signal(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail_by_signal(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    record(format, ap);
    va_end(ap);
    siglongjmp(now->escape, 1);
}

static void handle_fault(int number, siginfo_t *info, void *)
{
    if (!now || !now->running) { /* not ours: again, with the default action */
        signal(number, SIG_DFL);
        return;
    }
    char *stack = (char *)now->running->stack, *at = (char *)info->si_addr;
    if (number == SIGFPE) fail_by_signal("divides an integer by zero");
    if (at >= stack - STACK_GUARD && at < stack) fail_by_signal("overflows its stack");
    if (number == SIGSEGV || number == SIGBUS) fail_by_signal("touches address %p", (void *)at);
    fail_by_signal("raises signal %d", number);
}

void install_handler()
{
    struct sigaction action = {};
    action.sa_sigaction = handle_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(number, &action, nullptr);
}

static void give_signal_stack()
{
    enum { SIGNAL_BYTES = 64 << 10 };
    now->signal_stack = malloc(SIGNAL_BYTES);
    stack_t stack = {};
    stack.ss_sp = now->signal_stack;
    stack.ss_size = SIGNAL_BYTES;
    sigaltstack(&stack, nullptr);
}
#endif

/* ---- host threads ---- */

static void start_worker()
{
    if (now) return;
    now = new block();
    now->arena = (unsigned char *)aligned_alloc(64, ARENA_BYTES);
    now->cells.resize(DYNAMIC_MAX + STATIC_MAX);
    give_signal_stack();
}

void stop_worker()
{
    if (!now) return;
#ifndef __SANITIZE_ADDRESS__
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
#endif
    for (void *stack : now->free_stacks)
        munmap((char *)stack - STACK_GUARD, STACK_BYTES + STACK_GUARD);
    free(now->signal_stack);
    free(now->arena);
    delete now;
    now = nullptr;
}

void run_blocks(job *work)
{
    start_worker();
    now->work = work;
    for (uint64_t i; !work->has_failed && (i = work->next++) < work->n_blocks;) {
        now->position = i;
        run_block();
    }
}

} // namespace hl_emu
