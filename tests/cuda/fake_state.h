/* Inside of the emulated driver: its machine, and what its files share. fake_driver.cpp has
 * devices, contexts and failures; fake_module.cpp kernels; fake_memory.cpp memory and copies;
 * fake_stream.cpp streams, events and what runs on them; fake_graph.cpp captures and graphs. */
#ifndef HL_TESTS_CUDA_FAKE_STATE_H
#define HL_TESTS_CUDA_FAKE_STATE_H

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace fake
{

struct Kernel {
    std::string name;
    hl_fake_kernel_fn fn = nullptr;
    void *context = nullptr;
    std::vector<size_t> param_bytes;
    bool is_generated = false;
    unsigned max_threads = 1024; /* of a block */
};

/* One recording of an event: done when its stream has run as far. */
struct Mark {
    CUstream stream = nullptr;
    bool done = false;
    int looks = 0; /* by cuEventQuery */
    double ms = 0; /* on the machine's clock */
};

struct Node {
    std::function<void()> run;
    std::set<size_t> after;
};

struct Block {
    size_t bytes = 0;
    char *pages = nullptr; /* first page of the block, after the closed one */
    size_t page_bytes = 0;
    CUcontext context = nullptr;
};

struct State {
    std::recursive_mutex lock;
    hl_fake_config config = {};
    int process = 0; /* that called cuInit; 0: nobody */
    hl_fake_live live = {};
    std::map<std::string, int64_t> calls;
    int64_t syncs = 0, pageable = 0;
    int64_t fail_at = 0, fail_seen = 0;
    bool fail_sticky = false;
    CUresult fail_error = CUDA_SUCCESS;
    std::string fail_name;
    CUresult fail_name_error = CUDA_SUCCESS;
    const char *failed_call = nullptr;
    CUresult dead = CUDA_SUCCESS;
    std::string message;
    std::map<std::string, Kernel> kernels;
    bool (*load)(const void *image, size_t bytes) = nullptr;
    std::set<std::string> *loading = nullptr;               /* names that a library brings */
    std::map<std::string, std::set<std::string>> generated; /* by library: its kernels' names */
    std::map<CUdevice, CUcontext> contexts;
    std::map<uintptr_t, Block> blocks; /* by address of the first byte */
    std::map<uintptr_t, size_t> pinned;
    std::set<CUstream> streams;
    std::map<CUdevice, size_t> used_bytes;
    uint64_t replay_order = 0, n_captures = 0;
    int open_depth = 0;
    /* libraries say what they took, a kernel takes 1, a copy of 1 MiB on the device too */
    double clock_ms = 0;
    int64_t hook_at = 0;
    void (*hook)(void *) = nullptr;
    void *hook_context = nullptr;
    int (*is_held)(void) = nullptr;
    const char *held = "";
};
State &state();

/* Notes the first complaint and hands the error on. */
CUresult complain(CUresult error, const std::string &what);

/* ---- fake_driver.cpp: every call passes here ------------------------------------------------- */

enum Needs { NOTHING, DRIVER, CONTEXT };
/* Counts the call; what it answers is refused. */
CUresult pass(const char *name, Needs needs);
CUcontext current(); /* of this thread; NULL: none */

/* CALL returns at once; RELEASE goes on and answers `result` in the end. Only what is called in the
 * process that began and with a context does anything. */
#define CALL(needs)                                                                                \
    std::lock_guard<std::recursive_mutex> hold(state().lock);                                      \
    State &s = state();                                                                            \
    (void)s;                                                                                       \
    if (CUresult refused = pass(__func__, needs)) return refused
#define RELEASE(needs)                                                                             \
    std::lock_guard<std::recursive_mutex> hold(state().lock);                                      \
    State &s = state();                                                                            \
    (void)s;                                                                                       \
    CUresult result = pass(__func__, needs);                                                       \
    if (result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT) return result

/* The end of a RELEASE: the object is gone, one fewer lives. */
template <class T> CUresult forget(T *object, int &n_live, CUresult result)
{
    delete object;
    n_live--;
    return result;
}

/* ---- fake_memory.cpp ------------------------------------------------------------------------- */

CUresult block_alloc(CUcontext context, size_t bytes, CUdeviceptr *out_ptr);
CUresult block_free(CUdeviceptr ptr);
void blocks_forget();
bool is_device(const void *ptr, size_t bytes); /* wholly inside one live block */
bool is_reserved(const void *ptr);             /* an address that device memory has, or had */
void open_begin(); /* device memory is open between these; they may nest */
void open_end();

/* ---- fake_stream.cpp ------------------------------------------------------------------------- */

/* The device is lost. */
void die(CUresult error, const std::string &what);
/* Until the mark is passed; all of it without one. What is queued after a fault is dropped, but
 * marks are passed, or nobody would ever stop waiting. */
void drain(CUstream stream, const Mark *mark);
void drain_all();
/* Work of a stream: queued, or a node of the graph it is captured into. */
CUresult submit(CUstream stream, std::function<void()> work);

/* ---- fake_graph.cpp -------------------------------------------------------------------------- */

/* The capture of this number; NULL: it has ended. */
CUgraph find_capture(uint64_t number);
/* What a thread-local capture forbids its thread. */
CUresult forbid_in_capture(const char *what);
#define NOT_IN_CAPTURE                                                                             \
    if (CUresult forbidden = forbid_in_capture(__func__)) return forbidden

} // namespace fake

struct CUctx_st {
    CUdevice device = 0;
    int retained = 0;
};
struct CUkern_st {
    const fake::Kernel *kernel = nullptr;
    unsigned shared_bytes = 48 << 10;
    std::set<CUcontext> loaded; /* where its code lies in device memory */
};
struct CUlib_st {
    const std::set<std::string> *names = nullptr; /* of a generated one; else all of the tree */
    std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
};
struct CUevent_st {
    unsigned flags = 0;
    std::shared_ptr<fake::Mark> mark;
    uint64_t capture = 0; /* in which it was recorded; 0: in none */
    std::set<size_t> after;
};
struct CUgraph_st {
    uint64_t capture = 0; /* its number, from 1 */
    std::vector<fake::Node> nodes;
    CUstream origin = nullptr;
    std::set<CUstream> members;
    std::thread::id thread;
    bool broken = false;
};
struct CUgraphExec_st {
    std::vector<fake::Node> nodes;
};
struct CUstream_st {
    CUcontext context = nullptr;
    std::deque<std::function<void()>> queue;
    CUgraph graph = nullptr; /* being captured */
    std::set<size_t> after;  /* nodes that the next one follows */
};

#endif
