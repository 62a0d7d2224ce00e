/* Inside of a plan, for csrc/plan alone.
 *
 * Of the files here each uses only those before it in this list, so that none has to be read with
 * another one in mind (plan.h is what all of them show to the outside):
 *
 * run       what a region and a step launch
 * captures  launches kept for replay
 * queue     an asynchronous device's streams, for the plans of a session
 * session   stores, arena, slots
 * source    where batches come from, and whose lie in the slots
 * bind      every operand to an address
 * values    inputs and outputs
 * runner    windows of micro-batches, of one plan or several
 * report    what a plan is made of, as numbers and as text
 * profile   how long each launch takes
 * plan      from a graph to a plan */
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
    bool elided; /* its work was done by the layout */
    bool joined; /* the launch of one before it does its work too */
    bool opens;  /* guarded update of BEGIN: opens the window */
} hl_instr;

/* An input that is given by hand. LOST: it was, and another plan has used the slots since. */
typedef enum hl_given { HL_GIVEN_NEVER, HL_GIVEN, HL_GIVEN_LOST } hl_given;

/* Where a run stands, so that it can go on after a deadline. */
typedef struct hl_run_state {
    hl_plan *plan; /* whose micro-batch is under way */
    bool in_step;
    bool trains; /* the step is a window */
    hl_segment segment;
    int32_t region; /* next one */
    int32_t micro;  /* done in this window */
} hl_run_state;

struct hl_plan {
    hl_device *device;
    hl_session *session; /* NULL: the plan is a prediction, without memory */
    int32_t number;      /* in its session, from 1 */
    hl_plan *next;       /* of the session's plans */
    hl_graph *graph;
    hl_schedule schedule;
    hl_memory memory;
    hl_instr *instrs; /* by step */
    void **args;      /* n_args for each slot */
    int64_t n_args;
    void *thread_scratch;
    hl_control *control;
    int64_t generation;   /* of the session's addresses that args hold */
    hl_id *inputs;        /* leaves by number */
    hl_given *given;      /* by input */
    const void **sources; /* as given: host memory */
    void **source_at;     /* where kernels read them */
    int32_t *fed;         /* by input: the source whose rows fill it; NULL: the plan is not fed */
    int32_t n_slots;
    int64_t slot_bytes; /* of one slot */
    const void *slots_at; /* the session's, of which these are parts: */
    void **fields;      /* addresses of the slots' fields, */
    void **staged;      /* and of their staging halves: asynchronous devices */
    int32_t slot;       /* of the last batch */
    hl_dtype low;       /* of products */
    hl_feed *feed;
    int32_t k;
    bool continues; /* BEGIN goes on with a window that another plan opened */
    bool trains;    /* has a window at all; else BEGIN runs once per run */
    bool begun;
    int32_t n_tuned; /* of the steps: their kernels have settled what precedes a first launch */
    hl_run_state run;

    /* Asynchronous devices: */
    char *consts; /* device memory: constants, and what kernels uploaded */
    int64_t const_bytes;
    int64_t *const_offset; /* by value */
    void **source_copies;  /* of sources that were given in host memory */
    bool captures;         /* launches are kept and replayed */
    int32_t burst;         /* so many steps are launched at once */
    hl_captured **captured; /* the queue's, by slot and what is launched on it */
};

static inline bool hl_device_is_asynchronous(const hl_device *device)
{
    return device->ops->stream_create != NULL;
}

/* Has its work another launch done, or another plan? */
static inline bool hl_instr_is_skipped(const hl_plan *plan, const hl_instr *instr)
{
    return instr->elided || instr->joined || (instr->opens && plan->continues);
}

#endif
