/* Inside of a plan, for csrc/plan alone.
 *
 * Each file uses only those before it in this list, so that each can be read alone (plan.h is the
 * interface of all of them):
 *
 * poison    NaN where a region is going to write, in builds with AddressSanitizer
 * run       what a region and a task launch, and on which stream
 * finite    what of a step is not finite first, task by task
 * captures  launches kept for replay
 * queue     an asynchronous device's streams, for the plans of a session
 * session   stores, arena, slots
 * backup    a copy of all stores, for runs of which nothing is to stay
 * dataset   where batches come from, and which plan owns the slots
 * bind      gives every operand an address
 * values    inputs and outputs
 * report    describes a plan, as numbers and as text
 * build     makes a plan of a graph
 * tune      lets kernels choose their algorithms
 * runner    windows of micro-batches, of one plan or several
 * profile   times each launch */
#ifndef HL_PLAN_INTERNAL_H
#define HL_PLAN_INTERNAL_H

#include "passes/schedule.h"
#include "plan/plan.h"

typedef struct hl_captured hl_captured;

typedef struct hl_instr {
    const hl_kernel *kernel;
    hl_kernel_state state;
    hl_node_id node;
    hl_segment segment;
    int64_t first_arg; /* in plan->args, per slot */
    void *scratch;
    bool prepared;
    bool elided;        /* buffer assignment made its work unnecessary */
    bool joined;        /* the launch of an earlier task does its work too */
    bool opens;         /* guarded update of BEGIN: opens the window */
    bool refreshes;     /* update of BEGIN: makes a rounded copy of a store anew */
    bool lends;         /* its rows need not be written where they lie already (lend.h) */
    uint64_t borrows;   /* bit i: input i has the rows that the task of its chain that lends made */
    int64_t lent_bytes; /* of them, per row of the chain */
} hl_instr;

/* Who makes the rows of a streamed dataset: a field of a source. */
typedef struct hl_sourced {
    const hl_source *source; /* NULL: not set, or not streamed */
    int32_t field;
} hl_sourced;

/* An input that is given by hand. LOST: it was given, and another plan has used the slots since. */
typedef enum hl_given { HL_GIVEN_NEVER, HL_GIVEN, HL_GIVEN_LOST } hl_given;

/* Where a run stands, so that it can go on after a deadline. */
typedef struct hl_run_state {
    hl_plan *plan; /* whose micro-batch is under way */
    bool in_step;
    bool trains; /* the step is a window */
    hl_segment segment;
    int32_t region;  /* next one */
    int32_t micro;   /* done in this window */
    bool is_between; /* a micro-batch is done, and the next one was not taken yet */
} hl_run_state;

struct hl_plan {
    hl_device *device;
    hl_session *session; /* NULL: the plan is a prediction, without memory */
    int32_t number;      /* in its session, from 1 */
    hl_plan *next;       /* of the session's plans */
    hl_graph *graph;
    /* What it was made of, until its kernels are tuned; NULL where none is. */
    hl_graph *source;
    hl_plan_options options;
    hl_recomputed recomputed;
    hl_schedule schedule;
    hl_memory memory;
    hl_instr *instrs; /* by task */
    void **args;      /* n_args for each slot */
    int64_t n_args;
    void *thread_scratch;
    hl_control *control;
    int64_t generation;    /* of the session's addresses that args hold */
    hl_id *inputs;         /* leaves by number */
    hl_given *given;       /* by input */
    const void **datasets; /* as given: host memory */
    void **dataset_at;     /* where kernels read them */
    hl_sourced *sources;   /* of those that are streamed */
    int32_t *fed;          /* by input: the dataset whose rows fill it; NULL: none fills one */
    int32_t n_slots;
    int64_t slot_bytes;     /* of one slot */
    const void *slots_at;   /* the session's, of which these are parts: */
    void **fields;          /* addresses of the slots' fields, */
    void **staged;          /* and of their staging halves: asynchronous devices */
    int32_t slot;           /* of the last batch */
    hl_dtype compute_dtype; /* compute dtype of products */
    hl_feed *feed;
    int32_t k;
    bool continues;  /* BEGIN goes on with a window that another plan opened */
    bool trains;     /* has a window at all; else BEGIN runs once per run */
    bool has_copies; /* rounded ones of stores that it updates */
    bool refreshes;  /* they are not current: BEGIN makes them anew */
    bool begun;
    /* hl_session_count_changes when the BEGIN that was entered, and the one that was run whole,
     * read the stores; -1: none was. Its values lie in the arena until another plan runs. */
    int64_t begins_by, begun_by;
    int32_t n_tuned;  /* tasks whose kernels are autotuned and loaded, before a first launch */
    bool is_outdated; /* one of them does not take its node: the plan is made again */
    int64_t n_rebuilt;
    hl_run_state run;

    /* Asynchronous devices: */
    char *consts; /* device memory: constants, and what kernels uploaded */
    int64_t const_bytes;
    int64_t *const_offset;  /* by value */
    void **dataset_copies;  /* copies of datasets that were given in host memory */
    bool captures;          /* launches are kept and replayed */
    int32_t burst;          /* so many steps are launched at once */
    hl_captured **captured; /* the queue's, by slot and what is launched on it */
};

static inline bool hl_device_is_asynchronous(const hl_device *device)
{
    return device->ops->stream_create != NULL;
}

/* Does another launch, or did another plan or step, do its work? */
static inline bool hl_instr_is_skipped(const hl_plan *plan, const hl_instr *instr)
{
    return instr->elided || instr->joined || (instr->opens && plan->continues) ||
           (instr->refreshes && !plan->refreshes);
}

#endif
