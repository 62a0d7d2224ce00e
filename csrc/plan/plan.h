/* Session and plan: from a graph to launches.
 *
 * A session is one model's memory on one device: the persistent stores (parameters, moments,
 * running statistics, the control block) and one arena, which all plans of the session share
 * because only one of them runs at a time. A plan is a graph bound to a device: kernels chosen,
 * every value at an address, cut into regions; it runs without allocation. The flat program is
 * regions of chains of instructions (passes/passes.h); between regions lies a barrier, and there
 * the run may return to the caller (deadline, stop) and go on later.
 *
 * Threads. Sessions are independent of one another, on one device too: threads may use one each. A
 * session serves one caller at a time: what uses its memory returns HL_ERROR_BUSY while another
 * thread is at it. Nobody may use what is being destroyed. */
#ifndef HL_PLAN_PLAN_H
#define HL_PLAN_PLAN_H

#include "backend/backend.h"
#include "data/feed.h"

typedef struct hl_session hl_session;
typedef struct hl_plan hl_plan;

/* Borrows the device, which must outlive it. */
hl_status hl_session_create(hl_device *device, HL_GIVE hl_session **out_session);
/* Its plans must be destroyed first. NULL is allowed. */
void hl_session_destroy(HL_TAKE hl_session *session);
/* Makes the store, zero-filled, unless the session has it in this dtype and size; another size is
 * HL_ERROR_SHAPE. HL_ERROR_BUSY while a plan runs. dtype is the graph's; floats are held in the
 * device's float type when that is F64. */
hl_status hl_session_store(hl_session *session, const char *name, hl_dtype dtype, int64_t n);
/* Copies elements [first, first + n) in or out, converting between `dtype` and the store's own. */
hl_status hl_session_write(hl_session *session, const char *name, int64_t first, int64_t n,
                           hl_dtype dtype, const void *src);
hl_status hl_session_read(hl_session *session, const char *name, int64_t first, int64_t n,
                          hl_dtype dtype, void *dst);
/* dst store <- src store (best weights, EMA swap); sizes must match. */
hl_status hl_session_copy(hl_session *session, const char *dst, const char *src);
/* The control block, between runs. Host memory on the CPU; elsewhere a copy that write puts back.
 */
hl_status hl_session_control_read(hl_session *session, hl_control *out_control);
hl_status hl_session_control_write(hl_session *session, const hl_control *control);
/* The control block, ring excluded, without waiting: on an asynchronous device as it was when a
 * step some way back ended, all zero before the first run. */
hl_status hl_session_snapshot(hl_session *session, hl_control *out_control);

typedef struct hl_plan_options {
    int32_t n_slots; /* batch slots, at least 1 */
    int32_t k;       /* micro-batches per step of a training graph; may be changed between runs */
    bool fuse;       /* false: every op by itself, for tests and hl_runner_check */
    bool chain;      /* false: one instruction per region, for the same */
    bool capture;    /* asynchronous devices: replay what segments launch */
    bool overlap;    /* devices that can: weight gradients run beside the rest of the backward pass;
                        where the memory for that is not there they run behind it */
    bool fed;        /* all datasets stay on the host: batches are gathered there and sent */
    bool deterministic;     /* kernels that give the same bits every run, or HL_ERROR_DEVICE */
    hl_dtype compute_dtype; /* compute dtype of products: BF16, F16 (mixed precision), or F32 */
    bool tf32;              /* products of float32 may round their operands to TF32 */
    bool benchmark;         /* kernels may be autotuned */
    double recompute;       /* share of what is kept for the backward pass that is made again
                               instead, 0 to 1 (passes.h) */
} hl_plan_options;

/* Takes the graph (lowered and fused in place), on failure too. Makes the session's stores that the
 * graph names, and room for the plan in its arena and slots. */
hl_status hl_plan_create(hl_session *session, HL_TAKE hl_graph *graph,
                         const hl_plan_options *options, HL_GIVE hl_plan **out_plan);
/* Waits while another thread runs the session: not for a caller within a run. NULL is allowed. */
void hl_plan_destroy(HL_TAKE hl_plan *plan);

/* A plan in numbers. Bytes are the device's, as creating the plan takes them: for stores that the
 * session does not have yet, and for arena and slots as far as the session's are smaller. */
typedef struct hl_plan_info {
    int64_t arena_bytes;   /* activations, scratch */
    int64_t slot_bytes;    /* batches, all slots */
    int64_t staging_bytes; /* the slots' page-locked host memory; asynchronous devices */
    int64_t const_bytes;   /* constants; asynchronous devices */
    int64_t store_bytes;   /* of the session; predicted: of the graph, control block included */
    int64_t n_nodes, n_instructions, n_chains, n_regions;
    int64_t n_kernels; /* launches of a step with k = 1: instructions, less those that fusion or
                          buffer assignment saves, or that refresh a rounded copy */
    int64_t n_path_kernels; /* the longest chain of these in which each waits for the one before:
                               the others run beside them */
    int64_t n_to_autotune;  /* instructions that are autotuned before the first step */
    double flops;           /* of matrix products, one step with k = 1 */
    double large_flops;     /* of those with the device's reduced_side */
    double path_flops;      /* of the chain of launches that has the most */
    int64_t n_saved, n_recomputed, n_recompute_choices;
    double recomputed_flops, step_flops; /* these five as hl_recomputed has them */
} hl_plan_info;
/* The plan that hl_plan_create would make in a new session of the device, without memory of the
 * device's: only the host's is taken, and given back. Takes the graph, on failure too. out_text:
 * hl_plan_print's, or NULL. */
hl_status hl_plan_predict(hl_device *device, HL_TAKE hl_graph *graph,
                          const hl_plan_options *options, hl_plan_info *out_info,
                          HL_GIVE char **out_text);
void hl_plan_info_read(const hl_plan *plan, hl_plan_info *out_info);

/* A dataset-resident array: in a device's memory, for any plans there. Borrows the device. */
typedef struct hl_resident hl_resident;
hl_status hl_resident_create(hl_device *device, const void *data, size_t bytes,
                             HL_GIVE hl_resident **out_resident);
/* No plan may use it any more. NULL is allowed. */
void hl_resident_destroy(HL_TAKE hl_resident *resident);

/* Data of DATASET leaf `index`, in host memory: borrowed until the plan is destroyed or it is set
 * again. A plan that is not fed, on an asynchronous device, has a copy of its own there. */
hl_status hl_plan_dataset(hl_plan *plan, int32_t index, const void *data, int64_t rows);
/* The same, from the device's memory; for plans that are not fed. */
hl_status hl_plan_dataset_resident(hl_plan *plan, int32_t index, const hl_resident *resident,
                                   int64_t rows);
/* Who makes the rows of a streamed dataset; borrowed likewise. All datasets of one source are made
 * together. HL_ERROR_SHAPE when the source's field or rows are not the dataset's. */
hl_status hl_plan_dataset_source(hl_plan *plan, int32_t index, const hl_source *source,
                                 int32_t field);
/* Where batches come from; borrowed until the plan is destroyed, which takes its slots out of the
 * feed, or it is set again. NULL: the caller fills slots by hl_plan_input. HL_ERROR_CONFIG
 * when the feed has more slots than the plan, HL_ERROR_SHAPE when it gives row numbers and input 0
 * is not int64 of its batch; the plan then keeps what it had. */
hl_status hl_plan_feed(hl_plan *plan, hl_feed *feed);
/* Copies one INPUT into slot 0: type must match the leaf's. It is there until another plan of the
 * session runs or is given an input; inputs that were not given are zeros. */
hl_status hl_plan_input(hl_plan *plan, int32_t index, hl_dtype dtype, const hl_shape *shape,
                        const void *data);
/* Copies output `index` of the last run out, converting to dtype. HL_ERROR_CONFIG when there was
 * none, or another plan of the session has used the arena since. */
hl_status hl_plan_output(hl_plan *plan, int32_t index, hl_dtype dtype, void *dst);

typedef enum hl_run_end {
    HL_RUN_DONE,     /* n_steps were run */
    HL_RUN_DEADLINE, /* time passed; call again to go on */
    HL_RUN_ASKED,    /* the stop flag is up; call again to go on */
    HL_RUN_STOPPED,  /* latched: the loss or the gradients were not finite */
    HL_RUN_FEED_END  /* there is no further batch */
} hl_run_end;

/* Runs up to n_steps steps. deadline_ns 0: none. stop: raised by another thread or a signal
 * handler, or NULL. HL_ERROR_BUSY when the session already runs. HL_ERROR_DATA names op, row and
 * value of an index out of range; such a step is not applied. HL_ERROR_CONFIG when a step was left
 * in the middle and another plan of the session has run since: that step is lost; or when an input
 * that was given by hand is. */
hl_status hl_plan_run(hl_plan *plan, int64_t n_steps, int64_t deadline_ns, const volatile int *stop,
                      hl_run_end *out_end, int64_t *out_steps);
/* Was a step left in the middle? While the plan runs, only the thread that runs it may ask. */
bool hl_plan_is_unfinished(const hl_plan *plan);
/* Forgets a step that was left in the middle. */
hl_status hl_plan_abandon(hl_plan *plan);
hl_status hl_plan_set_k(hl_plan *plan, int32_t k);

/* A run over several plans of a session: an epoch of full batches and a smaller last one, or of
 * batches of several lengths. A step is a window of micro-batches, and those of one window may be
 * of different plans: the first plan opens it, each does its micro-batches, the last one applies.
 */
typedef struct hl_runner hl_runner;
typedef struct hl_batches {
    hl_plan *plan;
    int64_t n; /* the next ones of its feed, one after another */
} hl_batches;
/* The order of an epoch; copied. k: micro-batches of a step, of which an epoch's last may have
 * fewer. Plans are borrowed; all are of one session, and all train or none does. Stands at the
 * beginning. */
hl_status hl_runner_create(const hl_batches *order, int64_t n_order, int32_t k,
                           HL_GIVE hl_runner **out_runner);
/* Waits as hl_plan_destroy does. NULL is allowed. */
void hl_runner_destroy(HL_TAKE hl_runner *runner);
/* Another order of the runner's plans, from its beginning on, as where epochs mix batches of
 * several lengths; copied. Feeds stay where they are: seek moves them. Forgets a step that was left
 * in the middle. HL_ERROR_CONFIG for a plan that the runner does not have. */
hl_status hl_runner_reorder(hl_runner *runner, const hl_batches *order, int64_t n_order);
/* Goes to a batch of an epoch, feeds included; forgets a step that was left in the middle. */
hl_status hl_runner_seek(hl_runner *runner, uint64_t epoch, int64_t batch);
/* As hl_plan_run; HL_RUN_FEED_END at the end of the order, HL_ERROR_CONFIG when a feed ends before
 * it. out_batches: micro-batches of the steps that were run. */
hl_status hl_runner_run(hl_runner *runner, int64_t n_steps, int64_t deadline_ns,
                        const volatile int *stop, hl_run_end *out_end, int64_t *out_steps,
                        int64_t *out_batches);
bool hl_runner_is_unfinished(const hl_runner *runner);
hl_status hl_runner_abandon(hl_runner *runner);

/* A value that is not finite: of a node, or a leaf. Texts are the plan's. */
typedef struct hl_not_finite_value {
    hl_value_kind kind;
    const char *op, *scope;  /* of its node; NULL: a leaf; no module made it */
    const char *name;        /* of a leaf, or of the data of a batch; NULL: it has none */
    hl_segment segment;      /* of its node */
    const char *gradient_of; /* of a node of the backward pass, as hl_node has it; else NULL */
    bool reads_infinity;     /* its node has infinite operands, all others are finite */
    bool is_batch;           /* rows of data: */
    int64_t row;             /* the number of the one with the element `first`; -1: not known */
    hl_type type;
    int64_t n_nan, n_infinite; /* elements */
    int64_t first;             /* of them */
} hl_not_finite_value;
typedef enum hl_not_finite_what {
    HL_NOT_FINITE_NOTHING, /* all is finite */
    HL_NOT_FINITE_LOSS,
    HL_NOT_FINITE_GRADIENT,
    HL_NOT_FINITE_NORM, /* of finite gradients */
    HL_NOT_FINITE_VALUE /* one that does not come to the loss */
} hl_not_finite_what;
/* What of a step is not finite, and where it began. */
typedef struct hl_not_finite {
    hl_not_finite_what what;
    int32_t param; /* of a gradient: the parameter's number in the training step's list */
    int32_t micro; /* the micro-batch of the step, from 0 */
    hl_not_finite_value first;
    bool is_made_nan;        /* first is infinite, and a node made NaN of it: */
    hl_not_finite_value nan; /* that one's value */
} hl_not_finite;
/* Runs the next step of the order as attempted step `step`, task by task, and says what of it is
 * not finite (plan/finite.h); everything: a NaN that does not come to loss and gradients, too. All
 * stores are put back, the control block among them; the runner and its feeds have moved on. Fused
 * nodes are one each: a runner of plans without `fuse` looks into all. HL_ERROR_CONFIG where a step
 * of the model was left in the middle; errors of the step as hl_runner_run has them. */
hl_status hl_runner_check(hl_runner *runner, int64_t step, bool everything,
                          hl_not_finite *out_found);

/* A launch of a step, and what it takes when it runs alone. Texts are the plan's. */
typedef struct hl_launch_time {
    const char *op, *kernel, *scope; /* scope: NULL or the module's name */
    char algorithm[96];              /* what the kernel was tuned to, or "" */
    hl_segment segment;
    int32_t n_nodes; /* whose work it does; several where they are fused horizontally */
    int64_t n_runs;  /* in a step */
    hl_dtype dtype;  /* of a product's operands; HL_DTYPE_COUNT: no product */
    bool tf32;       /* these may be rounded to TF32 */
    double ns;
    double flops; /* of products, pointwise work and reductions; of other nodes 0 */
    double bytes; /* read and written, each once */
} hl_launch_time;
typedef struct hl_profile {
    hl_launch_time *launches; /* in the order of the step */
    int32_t n_launches;
    double step_ns; /* of a step as it runs, without what feeds it */
} hl_profile;
/* Times every launch of a step on the batch that the last run ended with (the feed has not moved
 * since), and leaves parameters, state and control block as they were; outputs must be made again
 * by a run. HL_ERROR_CONFIG when there was no run, or a step was left in the middle;
 * HL_ERROR_NOT_FINITE when steps on that batch are not applied, since updates that are held back
 * take no time. After an error of the device itself the state may have changed. */
hl_status hl_plan_profile(hl_plan *plan, hl_profile *out_profile);
void hl_profile_deinit(hl_profile *profile);
/* Text: regions, chains, kernels, shapes, offsets; with mixed precision the compute dtype of each
 * node and the reason for it. */
hl_status hl_plan_print(const hl_plan *plan, HL_GIVE char **out_text);

#endif
