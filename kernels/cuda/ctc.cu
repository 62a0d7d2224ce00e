/* Connectionist temporal classification: the recursions of kernels/ref/ctc.c, a block a sequence,
 * a thread a place, with a barrier after each time. What a time leaves for the next one lies in
 * global memory, which a block's threads share as they do its cache.
 *
 * What the paths give a class at a time is summed in one order: blanks by the block, and the places
 * of any other class by the thread of its first one, along a chain that is made once.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/ctc.h"

#include "kernels/cuda/fault.h"
#include "kernels/cuda/fold.h"

#define EACH_THREAD(i, n) for (int64_t i = hl_thread(); i < (n); i += hl_threads())

/* log(e^a + e^b + e^c); -inf where all are. */
HL_DEVICE float add_logarithms(float a, float b, float c)
{
    float top = fmaxf(fmaxf(a, b), c), from = top == -hl_infinity() ? 0.0f : top;
    return logf(expf(a - from) + expf(b - from) + expf(c - from)) + from;
}

/* One sequence. */
struct sequence {
    const hl_cuda_ctc_at &in;
    const hl_cuda_ctc_rule &rule;
    int64_t n, time, places;

    HL_MEMBER int64_t target(int64_t u) const
    {
        return hl_read_int(in.targets, rule.target_dtype, n * rule.S + u);
    }
    HL_MEMBER int64_t find_class(int64_t s) const
    {
        return s % 2 ? target(s / 2) : rule.blank;
    }
    HL_MEMBER float log_prob(int64_t t, int64_t s) const
    {
        return in.log_probs[(t * rule.N + n) * rule.C + find_class(s)];
    }
    /* A path may come to place s from s - 2. */
    HL_MEMBER bool may_skip(int64_t s) const
    {
        return s > 2 && s % 2 && target(s / 2) != target(s / 2 - 1);
    }
    HL_MEMBER int64_t width() const
    {
        return 2 * rule.S + 1;
    }
};

HL_DEVICE bool take_length(const sequence &q, const void *lengths, int32_t dtype, int64_t most,
                           int kind, int64_t *out_length)
{
    *out_length = hl_read_int(lengths, dtype, q.n);
    if (*out_length >= 0 && *out_length <= most) return true;
    if (hl_thread() == 0) hl_fault_set(q.in.control, q.in.fault, 3 * q.n + kind, *out_length);
    return false;
}

/* False where the sequence counts 0: a fault. Uniform over the block. */
HL_DEVICE bool take_sequence(sequence &q)
{
    HL_SHARED(int32_t, wrong, 1);
    int64_t count;
    const hl_cuda_ctc_rule &rule = q.rule;
    if (!take_length(q, q.in.input_lengths, rule.input_dtype, rule.T, 0, &q.time) ||
        !take_length(q, q.in.target_lengths, rule.length_dtype, rule.S, 1, &count))
        return false;
    q.places = 2 * count + 1;
    hl_barrier(); /* all have read the sequence before */
    if (hl_thread() == 0) wrong[0] = 0;
    hl_barrier();
    EACH_THREAD(u, count)
    {
        int64_t c = q.target(u);
        if (c >= 0 && c < rule.C && c != rule.blank) continue;
        hl_fault_set(q.in.control, q.in.fault, 3 * (q.n * rule.S + u) + 2, c);
        hl_atomic_max(&wrong[0], 1);
    }
    hl_barrier();
    return !wrong[0];
}

HL_DEVICE float find_loss(const sequence &q, const float *alpha)
{
    if (q.time == 0) return q.places == 1 ? 0.0f : hl_infinity();
    const float *last = alpha + (q.time - 1) * q.width() + q.places - 1;
    float none = -hl_infinity();
    return -add_logarithms(last[0], q.places == 1 ? none : last[-1], none);
}

HL_DEVICE void fill_time(const sequence &q, int64_t t, float *row)
{
    const float none = -hl_infinity(), *from = row - q.width();
    EACH_THREAD(s, q.width())
    {
        float sum = none;
        if (s >= q.places) {
            row[s] = none;
            continue;
        }
        if (t == 0)
            sum = s < 2 ? 0.0f : none;
        else
            sum = add_logarithms(from[s], s > 0 ? from[s - 1] : none,
                                 q.may_skip(s) ? from[s - 2] : none);
        row[s] = sum + q.log_prob(t, s);
    }
}

HL_CUDA_ENTRY(ctc_loss, HL_CUDA_CTC_THREADS, p)
{
    const hl_cuda_ctc_rule &rule = p.rule;
    for (int64_t n = hl_block_x(); n < rule.N; n += hl_blocks_x()) {
        sequence q = {p.at.in, rule, n, 0, 0};
        float *alpha = p.at.alpha + n * rule.T * q.width(), loss = 0;
        bool counts = take_sequence(q);
        int64_t end = counts ? q.time : 0;
        for (int64_t t = 0; t < end; t++) {
            fill_time(q, t, alpha + t * q.width());
            hl_barrier();
        }
        EACH_THREAD(i, (rule.T - end) * q.width()) alpha[end * q.width() + i] = -hl_infinity();
        if (hl_thread() != 0) continue;
        if (counts) loss = find_loss(q, alpha);
        p.at.loss[n] = rule.zero_infinity && loss == hl_infinity() ? 0.0f : loss;
    }
}

/* ---- gradient ---- */

/* Of each target the next one of its class, -1: none; less 2 + S where it has one before it. */
HL_DEVICE void make_chain(const sequence &q, int32_t *chain)
{
    int64_t count = q.places / 2;
    EACH_THREAD(u, count)
    {
        int64_t own = q.target(u), next = u + 1, before = u - 1;
        while (next < count && q.target(next) != own) next++;
        while (before >= 0 && q.target(before) != own) before--;
        int32_t link = next < count ? (int32_t)next : -1;
        chain[u] = before < 0 ? link : link - 2 - (int32_t)q.rule.S;
    }
}

/* Of one time: beta has the logarithms of the probabilities of going on from each place, and then
 * those of the time before. */
HL_DEVICE void step_back(const sequence &q, int64_t t, const float *alpha, float loss, float dloss,
                         float *beta, const int32_t *chain, float *grad)
{
    const int64_t C = q.rule.C, count = q.places / 2, skipped = q.rule.S + 2;
    const float *x = q.in.log_probs + (t * q.rule.N + q.n) * C, none = -hl_infinity();
    float *ahead = beta + q.width(), *share = ahead + q.width(), blanks = 0;
    EACH_THREAD(c, C) grad[c] = dloss * expf(x[c]);
    EACH_THREAD(s, q.places)
    {
        share[s] = dloss * expf(alpha[s] + beta[s] + loss);
        ahead[s] = beta[s] + q.log_prob(t, s);
    }
    hl_barrier();
    EACH_THREAD(u, count + 1) blanks += share[2 * u];
    blanks = hl_coop_sum(hl_coop_make(1), blanks);
    if (hl_thread() == 0) grad[q.rule.blank] -= blanks;
    EACH_THREAD(u, count)
    {
        if (chain[u] < -1) continue;
        float sum = 0;
        for (int64_t at = u; at >= 0;) {
            sum += share[2 * at + 1];
            int64_t link = chain[at];
            at = link < -1 ? link + skipped : link;
        }
        grad[q.target(u)] -= sum;
    }
    EACH_THREAD(s, q.places)
    beta[s] = add_logarithms(ahead[s], s + 1 < q.places ? ahead[s + 1] : none,
                             s + 2 < q.places && q.may_skip(s + 2) ? ahead[s + 2] : none);
    hl_barrier();
}

HL_CUDA_ENTRY(ctc_loss_grad, HL_CUDA_CTC_THREADS, p)
{
    const hl_cuda_ctc_rule &rule = p.rule;
    for (int64_t n = hl_block_x(); n < rule.N; n += hl_blocks_x()) {
        sequence q = {p.at.in, rule, n, 0, 0};
        const float *alpha = p.at.alpha + n * rule.T * q.width();
        float *beta = p.at.rows + 3 * n * q.width(), loss = 0, dloss = p.at.dloss[n];
        int32_t *chain = p.at.chain + n * rule.S;
        bool counts = take_sequence(q);
        if (counts) loss = find_loss(q, alpha);
        if (loss == hl_infinity()) {
            counts = counts && !rule.zero_infinity;
            dloss = loss - loss; /* NaN, as the gradient is */
        }
        int64_t end = counts ? q.time : 0;
        EACH_THREAD(i, (rule.T - end) * rule.C)
        p.at.grad[((end + i / rule.C) * rule.N + n) * rule.C + i % rule.C] = 0;
        if (!counts) continue;
        make_chain(q, chain);
        EACH_THREAD(s, q.places) beta[s] = s + 2 >= q.places ? 0.0f : -hl_infinity();
        hl_barrier();
        for (int64_t t = end - 1; t >= 0; t--)
            step_back(q, t, alpha + t * q.width(), loss, dloss, beta, chain,
                      p.at.grad + (t * rule.N + n) * rule.C);
    }
}
