/* The contract between the core and everything that touches hardware: of csrc/, kernels/ includes
 * base/, ir/ and this folder alone.
 *
 * A backend is three const tables: what it is (hl_backend), what a device of it does
 * (hl_device_ops), and per op an ordered list of kernels, fast ones first, a plain one last. A plan
 * asks each kernel in turn: `query` says no with a reason, or yes with what it needs; `prepare`
 * makes its state, in host memory alone, since it is asked for predictions too (code that a driver
 * loads for it is the device's and serves all plans); then the kernel runs many times and never
 * allocates, synchronises or fails for reasons of shape.
 *
 * Work that is cut. A device with a `parallel` function runs kernels in blocks: the kernel says how
 * many rows its work has and runs any range of them; the plan owns the loop. Operands marked
 * row-wise are split into `rows` equal parts (all values are contiguous), and row i of the work
 * touches only part i of them. So consecutive kernels whose data flow is row-wise form a chain, and
 * one thread takes a block of rows through the whole chain while it is in cache. Row-independent
 * results must not depend on how rows are cut.
 *
 * Phases. What can't be done in one go has several phases, each cut into blocks of its own, with a
 * barrier between: a kernel that sums over rows writes one partial per `grain` rows (fixed by the
 * shape alone) into its scratch, and merges them in a second phase, in a fixed tree, so that the
 * bits are the same at any number of threads; a recurrence has a phase for each step of time. The
 * first phase is the one that chains with other kernels; the others run behind the region's
 * barrier, on the pool where they are worth it.
 *
 * Fusion. A node may carry pointwise programs (ir/fusion.h). A kernel names those that it takes,
 * and is asked about no others.
 *
 * Saved outputs. What a forward kernel keeps for its backward kernel may lie in a form of its own,
 * of any size: bits in place of bools, a library's reserve. The query states form and size; plans
 * make room for so many bytes, and a kernel that does not say that it reads the form is not chosen
 * for a node that has such an operand. */
#ifndef HL_BACKEND_BACKEND_H
#define HL_BACKEND_BACKEND_H

#include "ir/control.h"
#include "ir/fusion.h"
#include "ir/graph.h"
#include "ir/op.h"

typedef struct hl_backend hl_backend;
typedef struct hl_device hl_device;
typedef struct hl_device_ops hl_device_ops;
typedef struct hl_stream hl_stream;
typedef struct hl_event hl_event;
typedef struct hl_capture hl_capture;
typedef struct hl_kernel hl_kernel;

/* ---- kernels --------------------------------------------------------------------------------- */

enum { HL_REASON_BYTES = 160, HL_KERNEL_PLACES = HL_PROGRAM_OUTS };
typedef struct hl_reason {
    char text[HL_REASON_BYTES]; /* why not: "needs K >= 8, got 3" */
} hl_reason;
/* Fills the reason and returns HL_ERROR_CONFIG, which in a query means "not this kernel" and is no
 * error. */
hl_status hl_reason_set(hl_reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An output in a form of the kernel's own. Each backend numbers its forms. */
typedef struct hl_saved {
    uint32_t form; /* 0: none, it lies as its type says */
    int64_t bytes;
} hl_saved;

typedef struct hl_kernel_req {
    size_t scratch_bytes; /* one block of memory per launch, shared by all threads, uninitialised */
    size_t thread_scratch_bytes; /* per thread, uninitialised at every block */
    /* Bit i of in_place[j]: output j may have the same memory as input i. Outputs from the
     * HL_KERNEL_PLACES-th on may not. */
    uint64_t in_place[HL_KERNEL_PLACES];
    hl_saved saved[HL_KERNEL_PLACES]; /* by output */
    /* The form in which input i is read (hl_value.form); 0, as for all further inputs: plain. */
    uint32_t form_in[HL_ANCHOR_INS];
    /* The physical layout that it takes and gives. It wants every operand permuted, dim i being
     * what was dim order.at[i]; hl_node_permute says what node and results are then. The lower pass
     * puts permutations around the node and asks again. n 0: no permutation. */
    hl_ints order;
    /* Bit j: where nobody reads output j, what the op lowers to takes less time. */
    uint32_t wants_read;
    bool deterministic; /* the same bits every run, on one device and its libraries */
    /* Cut work (kernels with `block`); rows 0: the kernel has `launch` alone. */
    int64_t rows;
    int64_t grain; /* a block begins at a multiple of it: partial sums, tile heights that matter; >=
                      1 */
    uint64_t row_in; /* bit i: input i is read row by row, in the first phase alone; others, and all
                        from the 64th on, are read whole */
    uint64_t row_out; /* bit j: output j is written row by row; others, and all from the 64th on,
                         are whole behind the last phase */
    double row_cost; /* rough ns of one core per row: decides how many blocks are worth a barrier */
    int32_t n_phases; /* 0: one */
    /* Of each phase behind the first. */
    int64_t phase_rows;
    double phase_row_cost;
} hl_kernel_req;

/* May output j have the memory of input i? */
static inline bool hl_kernel_takes_place(const hl_kernel_req *req, int32_t i, int32_t j)
{
    return i < 64 && j < HL_KERNEL_PLACES && req->in_place[j] >> i & 1;
}
static inline bool hl_kernel_reads_rows(const hl_kernel_req *req, int32_t input)
{
    return input < 64 && req->row_in >> input & 1;
}

static inline bool hl_kernel_writes_rows(const hl_kernel_req *req, int32_t output)
{
    return output < 64 && req->row_out >> output & 1;
}

typedef struct hl_kernel_state {
    const hl_kernel *kernel;
    void *impl; /* the kernel's own, from hl_alloc */
    /* Set by prepare (asynchronous devices): host memory of impl's that launches read on the
     * device.
     */
    const void *upload;
    size_t upload_bytes;
    const void *uploaded; /* set by the plan, before the first launch: its copy there */
} hl_kernel_state;

typedef struct hl_launch {
    void *scratch;
    void *thread_scratch;
    int thread;
    int32_t phase;
    hl_control *control; /* error word; the plan's control block, host or device address */
    int32_t plan;        /* the plan's number in the session: with node it makes the error word */
    hl_node_id node;
    hl_segment segment; /* which guard applies */
} hl_launch;

enum { HL_KERNEL_HORIZONTAL = 32 };

/* args: inputs in order, then outputs. An UPDATES op's output has the same address as its input. */
struct hl_kernel {
    hl_op op;
    const char *name; /* "cpu.matmul.rows": shown in plans and profiles */
    /* Programs that its nodes may carry, as hl_fusion_format writes them: "" for none, the others,
     * and NULL. NULL: it takes none. */
    const char *const *fusions;
    hl_status (*query)(hl_device *device, const hl_graph *graph, hl_node_id node,
                       hl_kernel_req *out_req, hl_reason *out_why_not);
    hl_status (*prepare)(hl_device *device, const hl_graph *graph, hl_node_id node,
                         hl_kernel_state *out_state);
    /* (optional; asynchronous devices) Like it, for up to HL_KERNEL_HORIZONTAL tasks that follow
     * one another, of kernels that have this same function, none of which writes what another reads
     * or writes: one launch does all of them. Its args are theirs, one task after the other; there
     * is no scratch. */
    hl_status (*prepare_horizontal)(hl_device *device, const hl_graph *graph,
                                    const hl_node_id *nodes, int32_t n, hl_kernel_state *out_state);
    /* (optional, with it) Are these, of which the last is new, worth one launch, and do they fit
     * into one? First asked of one task alone. NULL: always. */
    bool (*is_horizontal)(hl_device *device, const hl_graph *graph, const hl_node_id *nodes,
                          int32_t n);
    /* (optional; asynchronous devices) Like prepare, for this task and the next one, if the kernel
     * takes that: one launch does the work of both as if one ended before the other begins. Args as
     * above; scratch is the first's. */
    hl_status (*prepare_next)(hl_device *device, const hl_graph *graph, hl_node_id node,
                              hl_node_id next, hl_kernel_state *out_state);
    bool (*takes_next)(const hl_graph *graph, hl_node_id node, hl_node_id next);
    /* (optional; asynchronous devices) Like prepare_horizontal, for tasks that may each need what
     * those before it made: one launch does them in order, and ends each before it begins the
     * next. */
    hl_status (*prepare_sequence)(hl_device *device, const hl_graph *graph, const hl_node_id *nodes,
                                  int32_t n, hl_kernel_state *out_state);
    /* (with it) As is_horizontal. */
    bool (*is_sequence)(hl_device *device, const hl_graph *graph, const hl_node_id *nodes,
                        int32_t n);
    /* (optional; asynchronous devices) Called once before the first launch, outside of captures. It
     * may load code, measure candidates and wait for the device; it may overwrite outputs and
     * scratch. Inputs hold any values; where the graph is benchmarked or deterministic, numbers
     * between -1 and 1 wherever the plan has memory of its own for them. HL_ERROR_CONFIG: the
     * kernel does not take the node after all. Its query has to refuse the node from now on, and
     * the plan is made again without it. */
    hl_status (*tune)(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                      hl_stream *stream);
    /* (optional) What the kernel was tuned to, for a plan's text: "algorithm 2 of 4, 13.1 us". */
    void (*describe)(const hl_kernel_state *state, char *out_text, size_t bytes);
    hl_status (*launch)(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                        hl_stream *stream);
    /* (optional, with block) Where the rows [begin, end) of the only output lie already as block
     * would write them; NULL: nowhere. They end HL_ALIGN bytes at least before what may not be
     * read, and begin wherever an element may. */
    const void *(*lend)(const hl_kernel_state *state, void *const *args, int64_t begin,
                        int64_t end);
    /* Devices with `parallel`: rows [begin, end) of launch->phase. Of an operand that it reads row
     * by row it may read HL_ALIGN bytes behind these rows, and nothing else. */
    void (*block)(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                  const hl_launch *launch);
    void (*release)(hl_kernel_state *state); /* NULL: hl_free(impl) */
};

/* First kernel of the device's list for the node's op that accepts, and if deterministic gives the
 * same bits every run; reasons of the refused go to the log (debug). HL_ERROR_DEVICE when there is
 * none. */
hl_status hl_kernel_select(hl_device *device, const hl_graph *graph, hl_node_id node,
                           bool deterministic, const hl_kernel **out_kernel,
                           hl_kernel_req *out_req);
/* Like it, but *out_kernel NULL and HL_OK when there is none. */
hl_status hl_kernel_find(hl_device *device, const hl_graph *graph, hl_node_id node,
                         bool deterministic, const hl_kernel **out_kernel, hl_kernel_req *out_req);
/* Like hl_kernel_find, but the kernel may want another order of dims (hl_kernel_req.order). */
hl_status hl_kernel_find_in_any_order(hl_device *device, const hl_graph *graph, hl_node_id node,
                                      bool deterministic, const hl_kernel **out_kernel,
                                      hl_kernel_req *out_req);
/* Like hl_kernel_find, but only a kernel for which the node is worth one launch with others
 * (hl_kernel.is_horizontal). */
hl_status hl_kernel_find_beside(hl_device *device, const hl_graph *graph, hl_node_id node,
                                bool deterministic, const hl_kernel **out_kernel,
                                hl_kernel_req *out_req);

/* An operand that is no good, from a kernel: keeps the first. row and value are an index and its
 * place, or what the op says of them (hl_op_info.fault). Safe from any thread. */
static inline void hl_launch_fault(const hl_launch *launch, int64_t row, int64_t value)
{
    int64_t none = 0;
    if (!launch->control) return;
    if (__atomic_compare_exchange_n(&launch->control->error_code, &none,
                                    hl_control_fault(launch->plan, launch->node), false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        launch->control->error_row = row;
        launch->control->error_value = value;
    }
}
static inline bool hl_launch_blocked(const hl_launch *launch, const hl_control *control)
{
    return launch->segment == HL_SEGMENT_APPLY ? hl_control_blocks_apply(control)
                                               : hl_control_blocks_micro(control);
}

/* ---- devices --------------------------------------------------------------------------------- */

typedef enum hl_copy {
    HL_COPY_HOST_TO_DEVICE,
    HL_COPY_DEVICE_TO_HOST,
    HL_COPY_DEVICE_TO_DEVICE
} hl_copy;

typedef struct hl_memory_stats {
    int64_t current_bytes, peak_bytes; /* of memory_alloc, since the device was opened or
                                           the peak reset */
    int64_t free_bytes, total_bytes;   /* of the device, as it says itself */
} hl_memory_stats;

/* A device without stream_create is synchronous: its stream is NULL and a call has done its work
 * when it returns. On any other, calls that take a stream only queue it, in order; NULL stands for
 * the stream that the device was opened with, and no stream waits for another unless by an event.
 * Host memory that a queued copy reads or writes stays untouched until a synchronize or an event
 * says it is done; pageable memory is legal outside capture, and read at the call.
 *
 * Lost device: after a fault in a kernel every call is HL_ERROR_DEVICE_LOST, from the first that
 * sees the fault on; calls that free memory still do. */
struct hl_device_ops {
    void (*destroy)(HL_TAKE hl_device *device);
    hl_status (*memory_alloc)(hl_device *device, size_t bytes, HL_GIVE void **out_ptr);
    /* Waits for queued work, which may still use it; so does host_free. */
    void (*memory_free)(hl_device *device, HL_TAKE void *ptr);
    hl_status (*copy)(hl_device *device, void *dst, const void *src, size_t bytes, hl_copy kind,
                      hl_stream *stream);
    hl_status (*fill_zero)(hl_device *device, void *dst, size_t bytes, hl_stream *stream);
    hl_status (*synchronize)(hl_device *device, hl_stream *stream);
    /* Ordered list for an op, NULL-terminated; NULL: no kernel. */
    const hl_kernel *const *(*kernels)(const hl_device *device, hl_op op);
    /* (optional) Runs fn on blocks [0, n_blocks) and returns when done; without it kernels are
     * launched whole. */
    void (*parallel)(hl_device *device, int64_t n_blocks,
                     void (*fn)(void *context, int64_t block, int thread), void *context);
    /* (optional; asynchronous devices only, which have all of these) */
    hl_status (*memory_read)(hl_device *device, hl_memory_stats *out_stats);
    /* peak_bytes starts again from current_bytes. */
    void (*memory_peak_reset)(hl_device *device);
    /* Page-locked host memory: copies of it run beside the host. */
    hl_status (*host_alloc)(hl_device *device, size_t bytes, HL_GIVE void **out_ptr);
    void (*host_free)(hl_device *device, HL_TAKE void *ptr);
    hl_status (*stream_create)(hl_device *device, HL_GIVE hl_stream **out_stream);
    void (*stream_destroy)(hl_device *device, HL_TAKE hl_stream *stream);
    /* is_timed: event_elapsed may be asked of it. */
    hl_status (*event_create)(hl_device *device, bool is_timed, HL_GIVE hl_event **out_event);
    void (*event_destroy)(hl_device *device, HL_TAKE hl_event *event);
    hl_status (*event_record)(hl_device *device, hl_event *event, hl_stream *stream);
    hl_status (*event_wait)(hl_device *device, hl_event *event, hl_stream *stream);
    /* The host waits, or looks: an event that was never recorded is done. */
    hl_status (*event_synchronize)(hl_device *device, hl_event *event);
    hl_status (*event_query)(hl_device *device, hl_event *event, bool *out_done);
    /* Device time from one to the other, both timed, recorded and done. */
    hl_status (*event_elapsed)(hl_device *device, hl_event *from, hl_event *to, double *out_ns);
    /* What the calling thread queues on the stream between begin and end, and on streams that wait
     * for its events, is kept to be launched as a whole. End follows begin on every path, errors
     * included; until then memory_alloc and what waits are refused. */
    hl_status (*capture_begin)(hl_device *device, hl_stream *stream);
    hl_status (*capture_end)(hl_device *device, hl_stream *stream,
                             HL_GIVE hl_capture **out_capture);
    hl_status (*capture_launch)(hl_device *device, hl_capture *capture, hl_stream *stream);
    void (*capture_destroy)(hl_device *device, HL_TAKE hl_capture *capture);
    /* (optional) The autotune cache, to be saved with a model: lines of text, from hl_alloc; and
     * back. Lines of another device are kept and have no effect. */
    hl_status (*autotune_print)(hl_device *device, HL_GIVE char **out_text);
    hl_status (*autotune_read)(hl_device *device, const char *text);
};

/* A library that chooses on the device, and may not be asked where there is only a description: it
 * may stand where a plan has kernels whose names begin so, and take so much workspace. */
typedef struct hl_unasked {
    const char *kernel, *library; /* "cuda.matmul", "cuBLASLt" */
    size_t bytes;
} hl_unasked;
enum { HL_UNASKED_MAX = 3 };

/* First member of every backend's device. */
struct hl_device {
    const hl_device_ops *ops;
    const hl_backend *backend;
    char name[96];          /* "AMD EPYC, 2 threads, avx512" */
    int n_threads;          /* that `parallel` uses, 1 without it */
    hl_dtype float_type;    /* what floating values are computed in: F64 on ref, F32 elsewhere */
    bool fuses;             /* runs POINTWISE_FUSED */
    bool packs;             /* has MATMUL_PACK and MATMUL_PACKED */
    bool scales_columns;    /* products and convolutions take "mul(x, columns(y))" (ir/fusion.h) */
    hl_dtype reduced_dtype; /* the 16-bit type that it multiplies fast; F32: none */
    int64_t reduced_side;   /* products whose rows, columns and sums have so many elements gain from
                               it clearly */
    bool keeps_reduced;     /* mixed precision: activations between products stay in 16 bits */
    double overlap_flops;   /* weight gradients of at least so many operations run on a second
                               stream, beside the first; 0: none does */
    size_t alignment;       /* of every operand */
    int64_t n_refusals;     /* atomic: how often a query began to refuse what it took (tune) */
    bool is_described;      /* there is no such device here: plans are predicted for it, and what
                               would do work is refused */
    hl_unasked unasked[HL_UNASKED_MAX]; /* of such a device; kernel NULL: no more */
};

typedef struct hl_device_options {
    int n_threads;   /* 0: all that are usable */
    const char *isa; /* cpu: "portable", "avx2", "avx512", "avx512bf16", "amx" or NULL: HOTLOOP_CPU,
                        else the best of the machine */
    const char *library_roots; /* cuda: folders that may hold wheels (`nvidia/...`), ':' between
                                  them; NULL: none */
    const char *gpu;           /* cuda: the name of a GPU that is described ("T4"), in the place of
                                  the machine's; NULL: the machine's */
} hl_device_options;

/* What a backend finds on this machine, for people: nothing of it stays open. */
typedef struct hl_device_info {
    char name[96];
    char architecture[16];                 /* "sm_90" */
    int64_t free_bytes, total_bytes;       /* 0: not known */
    char why_not[HL_STATUS_MESSAGE_BYTES]; /* "": it was opened and has run a kernel */
} hl_device_info;
typedef struct hl_library_info {
    char name[32], version[32];
    char path[1024];
    char why_not[512]; /* "": found */
} hl_library_info;
enum { HL_SURVEY_DEVICES = 16, HL_SURVEY_LIBRARIES = 8 };
typedef struct hl_survey {
    int n_devices, n_libraries;
    hl_device_info devices[HL_SURVEY_DEVICES];
    hl_library_info libraries[HL_SURVEY_LIBRARIES];
    char why_none[HL_STATUS_MESSAGE_BYTES]; /* "" when there are devices */
    bool is_absent; /* there is no such hardware here, as far as can be told: nothing to mend */
} hl_survey;

struct hl_backend {
    const char *name; /* "cpu" */
    hl_status (*device_open)(const hl_backend *backend, int index, const hl_device_options *options,
                             HL_GIVE hl_device **out_device);
    /* (optional) with_open: opens each device to see whether it works, and the libraries, so it may
     * take a second; else devices are named only. */
    void (*survey)(const hl_backend *backend, const hl_device_options *options, bool with_open,
                   hl_survey *out_survey);
};

/* ---- registry: explicit, instantiated by the caller ------------------------------------------ */

enum { HL_REGISTRY_MAX = 8 };
typedef struct hl_registry {
    const hl_backend *backend[HL_REGISTRY_MAX];
    int n;
} hl_registry;

hl_status hl_registry_add(hl_registry *registry, const hl_backend *backend);
const hl_backend *hl_registry_find(const hl_registry *registry, const char *name);

/* Runs everything above kernels without computing: the skeleton of a new backend, and a test
 * double. */
const hl_backend *hl_null_backend(void);

#endif
