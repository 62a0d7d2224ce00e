/* Runner: steps, one micro-batch after another, of one plan or of several.
 *
 * A step is a window of k micro-batches: its first plan runs BEGIN, each micro-batch MICRO, the
 * last plan APPLY. A plan that comes into a window which another one opened finds nothing of its
 * own in the arena: it runs its BEGIN too, less the guarded updates that open a window, and adds to
 * the sums of gradients, which are the session's. So a window may change plans between any two
 * micro-batches, and a step of one plan is the case without a change.
 *
 * Between regions the loop looks at the stop flag and the clock; a step that was interrupted goes
 * on where it stood. APPLY is never interrupted: nobody may give up a step whose update has begun.
 * On an asynchronous device a window is queued whole.
 *
 * Rejected: the order of plans as a function that is called for each batch (a run from Python would
 * come back for every one), plans that are told to leave a window open or to join one (two flags to
 * be set before every run, and half of a window's rules with the caller). */
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"
#include "plan/backup.h"
#include "plan/bind.h"
#include "plan/dataset.h"
#include "plan/fault.h"
#include "plan/finite.h"
#include "plan/run.h"
#include "plan/tune.h"

enum { WAIT_NS = 5 * 1000 * 1000 }; /* for a batch, between looks at the clock */

struct hl_runner {
    hl_session *session;
    hl_batches *order;
    hl_plan **plans; /* that occur in it, each once */
    int64_t n_order, n_plans;
    int64_t at, done; /* the entry of the order that is next, and batches of it already taken */
    int32_t k;
    bool is_tuned;
    hl_run_state state;
};

/* One call of a run. */
typedef struct run_call {
    hl_session *session;
    hl_run_state *state;
    hl_runner *runner; /* whose order it follows; NULL: */
    hl_plan *only;     /* batches are all of this plan, until its feed ends */
    int32_t k;
    int64_t deadline_ns;
    const volatile int *stop;
    hl_finite *finite; /* runs the tasks, and looks at their results; NULL: nobody looks */
    hl_plan *entered;  /* the plan that is ready to run */
    int64_t n_batches; /* of the steps that were run */
} run_call;

static bool is_over(const run_call *call, hl_run_end *out_end)
{
    if (call->stop && __atomic_load_n(call->stop, __ATOMIC_RELAXED))
        *out_end = HL_RUN_ASKED;
    else if (call->deadline_ns && hl_os_time_ns() >= call->deadline_ns)
        *out_end = HL_RUN_DEADLINE;
    else
        return false;
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static hl_status check_given(const hl_plan *plan)
{
    for (int32_t i = 0; i < plan->graph->n_inputs; i++) {
        const hl_value *value = hl_graph_value(plan->graph, plan->inputs[i]);
        if (plan->given[i] == HL_GIVEN_LOST && !hl_plan_is_fed(plan, i))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "input %s: must be given after another plan of the model was used "
                                 "and before a run, got it before",
                                 value->name ? value->name : "?");
    }
    return HL_OK;
}

/* Autotunes and loads kernels, in the memory where the first step is going to run. */
static hl_status tune_kernels(run_call *call, hl_plan *plan, hl_run_end *out_end, bool *out_over)
{
    bool waited;
    *out_over = false;
    while (!hl_plan_is_tuned(plan) && !*out_over) {
        HL_TRY(hl_plan_tune_next(plan, &waited));
        *out_over = waited && is_over(call, out_end);
    }
    return HL_OK;
}

/* Tunes all plans before the first step: in the middle of a window nothing may be overwritten. */
static hl_status tune_plans(run_call *call, hl_run_end *out_end, bool *out_over)
{
    hl_runner *runner = call->runner;
    *out_over = false;
    if (!call->session->queue || call->state->in_step) return HL_OK;
    if (!runner) return tune_kernels(call, call->only, out_end, out_over);
    if (runner->is_tuned) return HL_OK;
    for (int64_t i = 0; i < runner->n_plans; i++) {
        HL_TRY(tune_kernels(call, runner->plans[i], out_end, out_over));
        if (*out_over) return HL_OK;
    }
    runner->is_tuned = true;
    return HL_OK;
}

/* Does what BEGIN made in an earlier run still lie in the arena, and would another make the same?
 * What it reads is constant, but for changes from outside. A training step begins its windows
 * itself. */
static bool is_begun_before(const run_call *call, const hl_plan *plan)
{
    const hl_session *session = call->session;
    return !plan->trains && !session->has_copies && session->resident == plan->number &&
           plan->begun_by >= 0 &&
           plan->schedule.segment_first[HL_SEGMENT_APPLY] == plan->schedule.n_regions &&
           plan->begun_by == hl_session_count_changes(session, plan->graph);
}

static hl_status enter_plan(run_call *call, hl_plan *plan)
{
    hl_session *session = call->session;
    bool resumes = call->state->in_step && call->state->plan == plan && !call->entered;
    if (call->entered == plan) return HL_OK;
    HL_TRY(hl_plan_bind(plan));
    if (session->queue) HL_TRY(hl_queue_enter(session->queue, plan));
    HL_TRY(hl_plan_take_slots(plan));
    HL_TRY(check_given(plan));
    if (!resumes) plan->begun = is_begun_before(call, plan);
    call->entered = plan;
    return HL_OK;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The plan of the next batch; NULL: there is none. */
static hl_plan *find_next(run_call *call)
{
    hl_runner *runner = call->runner;
    if (!runner) return call->only;
    while (runner->at < runner->n_order && runner->done == runner->order[runner->at].n) {
        runner->at++;
        runner->done = 0;
    }
    return runner->at < runner->n_order ? runner->order[runner->at].plan : NULL;
}

/* Makes the plan of the next batch ready, and waits until loaders have made the batch, as long as
 * the run may take. What is queued runs meanwhile. */
static hl_status wait_for_batch(run_call *call, hl_run_end *out_end, bool *out_over)
{
    hl_plan *plan = find_next(call);
    bool is_ready = true;
    *out_over = false;
    if (!plan) return HL_OK;
    HL_TRY(enter_plan(call, plan));
    if (!plan->feed) return HL_OK;
    HL_TRY(hl_feed_wait(plan->feed, 0, &is_ready));
    if (!is_ready && call->session->queue) HL_TRY(hl_queue_end_run(call->session->queue));
    while (!is_ready && !*out_over) {
        HL_TRY(hl_feed_wait(plan->feed, WAIT_NS, &is_ready));
        *out_over = !is_ready && is_over(call, out_end);
    }
    return HL_OK;
}

/* Takes the next batch. */
static hl_status take_batch(run_call *call, bool *out_end)
{
    hl_session *session = call->session;
    hl_plan *plan = find_next(call);
    *out_end = !plan;
    if (!plan) return HL_OK;
    if (session->queue)
        HL_TRY(hl_queue_take_batch(session->queue, out_end));
    else if (plan->feed)
        HL_TRY(hl_feed_next(plan->feed, &plan->slot, NULL, out_end));
    if (!call->runner || !*out_end) {
        if (call->runner) call->runner->done++;
        return HL_OK;
    }
    return hl_status_set(
        HL_ERROR_CONFIG, "run: a feed must have the batches of the order, got %lld of %lld",
        (long long)call->runner->done, (long long)call->runner->order[call->runner->at].n);
}

/* Was the epoch's last batch taken? */
static bool is_end_of_epoch(run_call *call)
{
    const hl_feed *feed = call->entered ? call->entered->feed : NULL;
    return feed && (call->runner ? !find_next(call) : hl_feed_is_over(feed));
}

/* The host waits at the end of an epoch, and after steps whose batches the caller makes itself. */
static bool is_place_to_wait(run_call *call)
{
    return !call->entered || !call->entered->feed || is_end_of_epoch(call);
}

/* ---- segments -------------------------------------------------------------------------------- */

static void enter_segment(hl_run_state *state, hl_segment segment)
{
    state->segment = segment;
    state->region = state->plan->schedule.segment_first[segment];
}

/* The plan that was entered goes on with the step, or begins it. */
static void enter_step(run_call *call, bool continues)
{
    hl_run_state *state = call->state;
    hl_plan *plan = call->entered;
    bool is_begun = plan->begun && !plan->trains;
    if (!is_begun) {
        plan->begun_by = -1;
        plan->begins_by = hl_session_count_changes(call->session, plan->graph);
    }
    plan->refreshes = !hl_session_begin_copies(call->session, plan->graph, !plan->begun);
    call->session->resident = plan->number;
    call->session->unfinished = state;
    state->plan = plan;
    plan->continues = continues;
    plan->begun = true;
    enter_segment(state, is_begun ? HL_SEGMENT_MICRO : HL_SEGMENT_BEGIN);
}

/* Runs the current segment from its next region on; *out_over: it was stopped in between. */
static hl_status run_segment(run_call *call, hl_run_end *out_end, bool *out_over)
{
    hl_run_state *state = call->state;
    const hl_plan *plan = state->plan;
    int32_t end = plan->schedule.segment_first[state->segment + 1];
    void **args = plan->args + plan->slot * plan->n_args;
    *out_over = false;
    if (call->session->queue) {
        hl_queue_add_segment(call->session->queue, state->segment);
        return HL_OK;
    }
    if (call->finite) {
        state->region = end;
        return hl_finite_run(call->finite, plan, state->segment, state->segment + 1, args, NULL);
    }
    while (state->region < end) {
        HL_TRY(hl_plan_run_region(plan, &plan->schedule.regions[state->region++], args, NULL));
        if (state->region < end && state->segment != HL_SEGMENT_APPLY && is_over(call, out_end)) {
            *out_over = true;
            return HL_OK;
        }
    }
    return HL_OK;
}

/* After a micro-batch: the next one of the window, or its end. A window that the epoch cuts short
 * is applied with what it has. */
static hl_status go_on(run_call *call, hl_run_end *out_end, bool *out_over)
{
    hl_run_state *state = call->state;
    bool is_end = state->micro == call->k;
    *out_over = false;
    if (!is_end) {
        HL_TRY(wait_for_batch(call, out_end, out_over));
        /* Where the batch is another plan's, that has the slots now; the step is still this one. */
        call->session->unfinished = state;
        if (*out_over) return HL_OK;
        HL_TRY(take_batch(call, &is_end));
    }
    state->is_between = false;
    if (is_end)
        enter_segment(state, HL_SEGMENT_APPLY);
    else if (call->entered == state->plan)
        enter_segment(state, HL_SEGMENT_MICRO);
    else
        enter_step(call, true);
    return HL_OK;
}

static hl_status begin_step(run_call *call, hl_run_end *out_end, bool *out_over)
{
    bool is_end;
    HL_TRY(wait_for_batch(call, out_end, out_over));
    if (*out_over) return HL_OK;
    HL_TRY(take_batch(call, &is_end));
    if (is_end) {
        *out_end = HL_RUN_FEED_END;
        *out_over = true;
        return HL_OK;
    }
    call->state->in_step = true;
    call->state->is_between = false;
    call->state->trains = call->entered->trains;
    call->state->micro = 0;
    enter_step(call, false);
    /* Clears the fault of a step that was given up, perhaps by another plan. */
    if (!call->session->queue) call->session->control->error_code = 0;
    return HL_OK;
}

/* One step, or the rest of one. *out_end is HL_RUN_DONE when it is complete. */
static hl_status run_step(run_call *call, hl_run_end *out_end)
{
    hl_run_state *state = call->state;
    bool over = false;
    *out_end = HL_RUN_DONE;
    if (!state->in_step) HL_TRY(begin_step(call, out_end, &over));
    for (bool is_done = false; !is_done && !over;) {
        if (state->is_between) {
            HL_TRY(go_on(call, out_end, &over));
            continue;
        }
        HL_TRY(run_segment(call, out_end, &over));
        if (over) return HL_OK;
        is_done = state->segment == HL_SEGMENT_APPLY;
        if (state->segment == HL_SEGMENT_BEGIN) {
            state->plan->begun_by = state->plan->begins_by;
            enter_segment(state, HL_SEGMENT_MICRO);
        } else if (!is_done) {
            state->micro++;
            state->is_between = true;
        }
    }
    if (over) return HL_OK;
    state->in_step = false;
    call->session->unfinished = NULL;
    call->n_batches += state->micro;
    if (call->session->queue) HL_TRY(hl_queue_end_step(call->session->queue));
    if (state->plan->has_copies) hl_session_end_copies(call->session, state->plan->graph);
    return hl_session_check_fault(call->session);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* A window that was given up does not block the steps after it. */
static void give_up_step(hl_session *session, hl_run_state *state)
{
    bool in_window = state->in_step && state->trains;
    if (session->queue) /* a device that fails here fails the next run too */
        (void)hl_queue_give_up(session->queue, in_window);
    else if (in_window)
        session->control->window_ok = 1;
    if (session->unfinished == state) session->unfinished = NULL;
    state->in_step = false;
}

static hl_status check_unfinished(const run_call *call)
{
    if (!call->state->in_step || call->session->unfinished == call->state) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "run: a step was left in the middle and another plan of "
                                          "the model has run since: it cannot go on");
}

/* Steps until there is a reason to return. */
static hl_status loop_steps(run_call *call, int64_t n_steps, hl_run_end *out_end,
                            int64_t *out_steps)
{
    while (*out_steps < n_steps) {
        /* The step that stops the run is finished first: the log has a place for it. */
        if (hl_session_control(call->session)->stopped && !call->state->in_step) {
            *out_end = HL_RUN_STOPPED;
            return HL_OK;
        }
        HL_TRY(run_step(call, out_end));
        if (*out_end != HL_RUN_DONE) return HL_OK;
        ++*out_steps;
        /* Time that is over at the end of an epoch leaves nothing unseen of it. */
        if (*out_steps < n_steps && !is_end_of_epoch(call) && is_over(call, out_end)) return HL_OK;
    }
    return HL_OK;
}

static hl_status run_steps(run_call *call, int64_t n_steps, hl_run_end *out_end, int64_t *out_steps)
{
    hl_session *session = call->session;
    bool over;
    HL_TRY(check_unfinished(call));
    /* Between two micro-batches the plan is that of the next one. */
    if (call->state->in_step && !call->state->is_between)
        HL_TRY(enter_plan(call, call->state->plan));
    if (session->queue) HL_TRY(hl_queue_refresh(session->queue));
    HL_TRY(tune_plans(call, out_end, &over));
    if (over) return HL_OK;
    HL_TRY(loop_steps(call, n_steps, out_end, out_steps));
    if (*out_end != HL_RUN_DONE && *out_end != HL_RUN_FEED_END) return HL_OK;
    if (session->queue && is_place_to_wait(call)) {
        HL_TRY(hl_queue_drain(session->queue));
        HL_TRY(hl_session_check_fault(session));
    }
    if (hl_session_control(session)->stopped && !call->state->in_step) *out_end = HL_RUN_STOPPED;
    return HL_OK;
}

/* Of a session that was entered. */
static hl_status run_entered(run_call *call, int64_t n_steps, hl_run_end *out_end,
                             int64_t *out_steps)
{
    hl_session *session = call->session;
    *out_end = HL_RUN_DONE;
    *out_steps = 0;
    hl_status status = run_steps(call, n_steps, out_end, out_steps);
    if (status == HL_OK && session->queue) status = hl_queue_flush(session->queue);
    if (status != HL_OK) {
        give_up_step(session, call->state);
        hl_session_drop_copies(session);
    }
    return status;
}

static hl_status run(run_call *call, int64_t n_steps, hl_run_end *out_end, int64_t *out_steps)
{
    *out_end = HL_RUN_DONE;
    *out_steps = 0;
    HL_TRY(hl_session_enter(call->session, "run"));
    hl_status status = run_entered(call, n_steps, out_end, out_steps);
    hl_session_leave(call->session);
    return status;
}

static hl_status abandon(hl_session *session, hl_run_state *state)
{
    HL_TRY(hl_session_enter(session, "abandon"));
    give_up_step(session, state);
    hl_session_leave(session);
    return HL_OK;
}

/* ---- of one plan ----------------------------------------------------------------------------- */

hl_status hl_plan_run(hl_plan *plan, int64_t n_steps, int64_t deadline_ns, const volatile int *stop,
                      hl_run_end *out_end, int64_t *out_steps)
{
    run_call call = {.session = plan->session,
                     .state = &plan->run,
                     .only = plan,
                     .k = plan->k,
                     .deadline_ns = deadline_ns,
                     .stop = stop};
    return run(&call, n_steps, out_end, out_steps);
}

bool hl_plan_is_unfinished(const hl_plan *plan)
{
    return plan->run.in_step;
}

hl_status hl_plan_abandon(hl_plan *plan)
{
    return abandon(plan->session, &plan->run);
}

hl_status hl_plan_set_k(hl_plan *plan, int32_t k)
{
    HL_TRY(hl_session_enter(plan->session, "k"));
    plan->k = k > 0 ? k : 1;
    hl_session_leave(plan->session);
    return HL_OK;
}

/* ---- of several ------------------------------------------------------------------------------ */

static hl_status check_order(const hl_batches *order, int64_t n_order)
{
    int64_t total = 0;
    if (n_order < 1)
        return hl_status_set(HL_ERROR_CONFIG, "run: an order must have an entry, got none");
    for (int64_t i = 0; i < n_order; i++) {
        const hl_plan *plan = order[i].plan;
        if (order[i].n < 0 || __builtin_add_overflow(total, order[i].n, &total))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "run: an order's batches must be counted in 63 bits, got %lld",
                                 (long long)order[i].n);
        if (plan->session != order->plan->session || plan->trains != order->plan->trains)
            return hl_status_set(HL_ERROR_CONFIG, "run: an order's plans must be of one model, and "
                                                  "all train or none, got others");
    }
    return HL_OK;
}

static bool has_plan(const hl_runner *runner, const hl_plan *plan)
{
    for (int64_t i = 0; i < runner->n_plans; i++)
        if (runner->plans[i] == plan) return true;
    return false;
}

hl_status hl_runner_create(const hl_batches *order, int64_t n_order, int32_t k,
                           hl_runner **out_runner)
{
    hl_runner *runner;
    *out_runner = NULL;
    HL_TRY(check_order(order, n_order));
    hl_status status;
    HL_GOTO(hl_alloc_zero(sizeof *runner, (void **)&runner));
    HL_GOTO(hl_alloc((size_t)n_order * sizeof *order, (void **)&runner->order));
    HL_GOTO(hl_alloc((size_t)n_order * sizeof(hl_plan *), (void **)&runner->plans));
    for (int64_t i = 0; i < n_order; i++)
        if (!has_plan(runner, order[i].plan)) runner->plans[runner->n_plans++] = order[i].plan;
    memcpy(runner->order, order, (size_t)n_order * sizeof *order);
    runner->session = order->plan->session;
    runner->n_order = n_order;
    runner->k = k > 0 ? k : 1;
    *out_runner = runner;
    runner = NULL;
cleanup:
    hl_runner_destroy(runner);
    return status;
}

void hl_runner_destroy(hl_runner *runner)
{
    if (!runner) return;
    hl_session *session = runner->session;
    if (session) {
        hl_session_await(session);
        if (session->unfinished == &runner->state) session->unfinished = NULL;
        hl_session_leave(session);
    }
    hl_free(runner->order);
    hl_free(runner->plans);
    hl_free(runner);
}

hl_status hl_runner_reorder(hl_runner *runner, const hl_batches *order, int64_t n_order)
{
    hl_batches *copy;
    HL_TRY(check_order(order, n_order));
    for (int64_t i = 0; i < n_order; i++)
        if (!has_plan(runner, order[i].plan))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "run: an order must be of the runner's plans, "
                                 "got another at place %lld",
                                 (long long)i);
    hl_status status;
    HL_TRY(hl_alloc((size_t)n_order * sizeof *order, (void **)&copy));
    memcpy(copy, order, (size_t)n_order * sizeof *order);
    HL_GOTO(hl_session_enter(runner->session, "order"));
    give_up_step(runner->session, &runner->state);
    hl_batches *old = runner->order;
    runner->order = copy;
    copy = old;
    runner->n_order = n_order;
    runner->at = runner->done = 0;
    hl_session_leave(runner->session);
cleanup:
    hl_free(copy);
    return status;
}

hl_status hl_runner_run(hl_runner *runner, int64_t n_steps, int64_t deadline_ns,
                        const volatile int *stop, hl_run_end *out_end, int64_t *out_steps,
                        int64_t *out_batches)
{
    run_call call = {.session = runner->session,
                     .state = &runner->state,
                     .runner = runner,
                     .k = runner->k,
                     .deadline_ns = deadline_ns,
                     .stop = stop};
    hl_status status = run(&call, n_steps, out_end, out_steps);
    *out_batches = call.n_batches;
    return status;
}

bool hl_runner_is_unfinished(const hl_runner *runner)
{
    return runner->state.in_step;
}

hl_status hl_runner_abandon(hl_runner *runner)
{
    return abandon(runner->session, &runner->state);
}

/* ---- what is not finite ---------------------------------------------------------------------- */

/* Makes `step` the next attempted step, of a run that was not stopped. */
static hl_status begin_again(hl_session *session, int64_t step, bool *out_is_scaled)
{
    hl_device *device = session->device;
    hl_control control;
    HL_TRY(device->ops->copy(device, &control, session->control, sizeof control,
                             HL_COPY_DEVICE_TO_HOST, session->compute));
    HL_TRY(device->ops->synchronize(device, session->compute));
    *out_is_scaled = control.loss_scale != 1.0;
    control.attempted = step - 1;
    control.stopped = 0;
    control.window_ok = 1;
    control.error_code = 0;
    HL_TRY(device->ops->copy(device, session->control, &control, sizeof control,
                             HL_COPY_HOST_TO_DEVICE, session->compute));
    if (session->queue) hl_queue_set_control(session->queue, session->control);
    return device->ops->synchronize(device, session->compute);
}

/* One step, with nothing under way before and behind it. */
static hl_status run_alone(run_call *call)
{
    hl_queue *queue = call->session->queue;
    hl_run_end end;
    int64_t n_steps;
    if (queue) hl_queue_set_finite(queue, call->finite);
    hl_status status = run_entered(call, 1, &end, &n_steps);
    if (status == HL_OK && queue) status = hl_queue_drain(queue);
    if (queue) hl_queue_set_finite(queue, NULL);
    return status;
}

static hl_status check_step(hl_runner *runner, int64_t step, bool everything,
                            hl_not_finite *out_found)
{
    hl_session *session = runner->session;
    run_call call = {.session = session, .state = &runner->state, .runner = runner, .k = runner->k};
    hl_backup backup = {0};
    bool is_scaled;
    if (session->unfinished)
        return hl_status_set(HL_ERROR_CONFIG, "check: no step may be left in the middle, got one");
    if (session->queue) HL_TRY(hl_queue_drain(session->queue));
    hl_status status;
    HL_GOTO(hl_backup_init(session, &backup));
    status = begin_again(session, step, &is_scaled);
    if (status == HL_OK) status = hl_finite_create(everything, is_scaled, &call.finite);
    if (status == HL_OK) status = run_alone(&call);
    status = hl_backup_restore(&backup, status);
    if (session->queue) hl_queue_set_control(session->queue, session->control);
    hl_session_drop_copies(session);
    if (status == HL_OK) *out_found = *hl_finite_found(call.finite);
cleanup:
    hl_finite_destroy(call.finite);
    hl_backup_deinit(&backup);
    return status;
}

hl_status hl_runner_check(hl_runner *runner, int64_t step, bool everything,
                          hl_not_finite *out_found)
{
    *out_found = (hl_not_finite){0};
    HL_TRY(hl_session_enter(runner->session, "check"));
    hl_status status = check_step(runner, step, everything, out_found);
    hl_session_leave(runner->session);
    return status;
}

/* Counts the batches of this plan that come before batch `done` of entry `at`. */
static int64_t count_taken(const hl_runner *runner, const hl_plan *plan, int64_t at, int64_t done)
{
    int64_t n = runner->order[at].plan == plan ? done : 0;
    for (int64_t i = 0; i < at; i++)
        if (runner->order[i].plan == plan) n += runner->order[i].n;
    return n;
}

hl_status hl_runner_seek(hl_runner *runner, uint64_t epoch, int64_t batch)
{
    int64_t at = 0, done = batch;
    while (at + 1 < runner->n_order && done > runner->order[at].n) done -= runner->order[at++].n;
    if (batch < 0 || done > runner->order[at].n)
        return hl_status_set(HL_ERROR_CONFIG, "run: a batch must lie in the order, got %lld",
                             (long long)batch);
    /* What a feed would refuse is refused before anything moves. */
    for (int64_t i = 0; i < runner->n_plans; i++) {
        const hl_plan *plan = runner->plans[i];
        int64_t n = count_taken(runner, plan, at, done);
        if (plan->feed && n > hl_feed_batches(plan->feed))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "run: a feed must have the batches of the order, got %lld of %lld",
                                 (long long)hl_feed_batches(plan->feed), (long long)n);
    }
    HL_TRY(hl_session_enter(runner->session, "seek"));
    give_up_step(runner->session, &runner->state);
    runner->at = at;
    runner->done = done;
    hl_session_leave(runner->session);
    for (int64_t i = 0; i < runner->n_plans; i++) {
        const hl_plan *plan = runner->plans[i];
        int64_t n = count_taken(runner, plan, at, done);
        if (plan->feed) HL_TRY(hl_feed_seek(plan->feed, epoch, n));
    }
    return HL_OK;
}
