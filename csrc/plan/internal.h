/* Inside of a plan, for csrc/plan alone. */
#ifndef HL_PLAN_INTERNAL_H
#define HL_PLAN_INTERNAL_H

#include "passes/schedule.h"
#include "plan/queue.h"
#include "plan/session.h"

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

struct hl_plan {
    hl_session *session;
    int32_t number; /* in its session, from 1 */
    hl_plan *next;  /* of the session's plans */
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
    const void **sources; /* as given: host memory */
    void **source_at;     /* where kernels read them */
    int32_t *fed;         /* by input: the source whose rows fill it; NULL: the plan is not fed */
    void **fields;        /* addresses of the slots' fields */
    void *slots;
    int64_t slot_bytes;
    int32_t n_slots;
    hl_dtype low; /* of products */
    hl_feed *feed;
    hl_queue *queue;       /* asynchronous devices: how it runs there, and these copies: */
    char *consts;          /* constants, */
    int64_t *const_offset; /* by value, */
    void **source_copies;  /* and sources that were given in host memory */
    int32_t k;
    bool join, hold; /* the window was opened by, or is left to, another plan */
    bool trains;     /* has a window at all; else BEGIN runs once per run */
    bool begun;
    int32_t n_tuned; /* of the steps: their kernels have settled what precedes a first launch */
    /* Where a run stands, so that it can go on after a deadline. */
    bool in_step;
    hl_segment segment;
    int32_t region; /* next one */
    int32_t micro;  /* done in this window */
    int32_t slot;
};

/* Has its work another launch done, or another plan? */
static inline bool hl_instr_is_skipped(const hl_plan *plan, const hl_instr *instr)
{
    return instr->elided || instr->joined || (instr->opens && plan->join);
}
/* Floating operations of a matrix product, 0 of any other node; are its sides all long? */
double hl_plan_count_product(const hl_graph *graph, const hl_node *node, bool *out_is_large);
/* Adds to info's flops and large_flops. */
void hl_plan_count_flops(const hl_graph *graph, hl_plan_info *info);
/* Addresses of all operands, again when the session's memory moved. */
hl_status hl_plan_bind(hl_plan *plan);
/* Copies of sources, before the rest of the plan. */
void hl_plan_free_sources(hl_plan *plan);
/* A region's blocks, and what is launched whole: on an asynchronous device it is queued. */
hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream);
/* One of its steps by itself. */
hl_status hl_plan_run_alone(const hl_plan *plan, int32_t step, void **args, hl_stream *stream);

#endif
