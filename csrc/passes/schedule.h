/* Schedule and buffer assignment: the last passes, which plan a graph for a device without changing
 * it.
 *
 * task    one node with the kernel that was chosen for it
 * chain   tasks that one thread runs one after another on a block of rows
 * region  independent chains; between regions lies a barrier
 * side    the second stream of an asynchronous device (schedule.c): its tasks begin behind the
 *         region before theirs, and run beside the regions behind it until the main stream waits
 *
 * Buffer assignment gives every value that a node makes an offset in the arena, or makes it part of
 * another value. */
#ifndef HL_PASSES_SCHEDULE_H
#define HL_PASSES_SCHEDULE_H

#include "passes/passes.h"

typedef struct hl_task {
    hl_node_id node;
    const hl_kernel *kernel;
    hl_kernel_req req;
    int32_t chain;
    int64_t rows_per_block_row; /* the kernel's rows per row of the chain */
    int64_t n_phase_blocks;     /* of each phase behind the first */
    int32_t side;               /* its number among those on the side stream; HL_NONE: it is on
                                   the main one */
    int32_t join;               /* on the side stream: the region before which the main one waits
                                   for it, which may be the end of the segment */
} hl_task;
/* Tasks on the side stream that the main one may be ahead of. */
enum { HL_SIDE_AHEAD = 2 };

typedef struct hl_chain {
    int32_t first_task, n_tasks;
    int32_t region;
    int64_t rows;     /* of the chain; 0: tasks are launched whole, one by one */
    int64_t grain;    /* of the chain's rows */
    int64_t n_grains; /* the last one may be short */
    int64_t n_blocks; /* 0: nothing to share out */
} hl_chain;

/* The first row of a block, and where the one before ends: blocks differ by a grain at most. */
static inline int64_t hl_chain_row(const hl_chain *chain, int64_t block)
{
    int64_t row = block * chain->n_grains / chain->n_blocks * chain->grain;
    return row < chain->rows ? row : chain->rows;
}

typedef struct hl_region {
    int32_t first_chain, n_chains;
    int64_t n_blocks; /* of all chains */
    bool serial;      /* too little work for a barrier: the calling thread runs all of it */
    int32_t n_phases; /* the most that one of its tasks has */
    int32_t awaits;   /* the main stream waits here for the side stream's tasks up to this number;
                         HL_NONE: for none */
} hl_region;

typedef struct hl_schedule {
    hl_task *tasks; /* in order of chains */
    hl_chain *chains;
    hl_region *regions;
    int32_t n_tasks, n_chains, n_regions;
    int32_t segment_first[HL_SEGMENT_COUNT + 1]; /* regions of segment s: [s], [s + 1] */
    int32_t *task_of_node;                       /* HL_NONE: a view, or dead */
} hl_schedule;

/* Cuts the graph into regions. choices: by node. chain false: one task per region. overlap: tasks
 * may go to the side stream of a device that has one; their order is the same without. */
hl_status hl_pass_schedule(const hl_graph *graph, hl_device *device, const hl_choice *choices,
                           bool chain, bool overlap, hl_schedule *out_schedule);
void hl_schedule_deinit(hl_schedule *schedule);

typedef struct hl_place {
    hl_id
        root; /* the value whose memory this one is (itself, or the leaf or value that holds it) */
    int64_t offset; /* bytes behind the root's address; of a root: offset in the arena, HL_NONE for
                       leaves */
} hl_place;

typedef struct hl_memory {
    hl_place *places;       /* by value */
    int64_t *scratch;       /* by task: arena offset, HL_NONE: none */
    int64_t thread_scratch; /* arena offset of n_threads areas */
    int64_t thread_stride;
    int64_t arena_bytes;
    bool *elided; /* by task: a concat whose operands were made in place */
} hl_memory;

/* After the schedule, which it reads but for blocks. */
hl_status hl_pass_memory(const hl_graph *graph, const hl_schedule *schedule,
                         const hl_device *device, hl_memory *out_memory);
void hl_memory_deinit(hl_memory *memory);
/* Last of all: chains into blocks, and which regions are too little work for a barrier. A task that
 * memory made superfluous is none. */
void hl_schedule_partition(const hl_graph *graph, const hl_device *device, const bool *elided,
                           hl_schedule *schedule);
size_t hl_value_bytes(const hl_graph *graph, hl_id value);

#endif
