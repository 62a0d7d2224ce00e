/* Epilogues of products and convolutions: what becomes of a sum before it is stored, from the
 * programs that a node carries (ir/fusion.h) to the steps of the GEMM core (gemm.h).
 *
 * In this order, each of them there or absent: a scale per column, a shift per column, a residual,
 * an activation. A bias of the node's own is the shift. All kernels that end sums of products take
 * the same ones, from here. */
#ifndef HL_KERNELS_CPU_EPILOGUE_H
#define HL_KERNELS_CPU_EPILOGUE_H

#include "ir/fusion.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"

/* Of the programs that begin with `text`, `alone` being that without more, by index: residual, then
 * activation. `next` is the letter of a further operand. */
#define HL_EPILOGUES(alone, text, next)                                                            \
    alone, "relu(" text ")", "gelu(" text ")", "add(" text ", " next ")",                          \
        "relu(add(" text ", " next "))", "gelu(add(" text ", " next "))"
#define HL_SCALED "mul(x, columns(y))"
#define HL_EPILOGUES_ALL                                                                           \
    HL_EPILOGUES("", "x", "y"), HL_EPILOGUES("add(x, columns(y))", "add(x, columns(y))", "z"),     \
        HL_EPILOGUES(HL_SCALED, HL_SCALED, "z"),                                                   \
        HL_EPILOGUES("add(" HL_SCALED ", columns(z))", "add(" HL_SCALED ", columns(z))", "w")
static const char *const hl_epilogue_texts[] __attribute__((unused)) = {HL_EPILOGUES_ALL, NULL};
/* Of kernels that give the moments of their columns, too. */
enum { HL_EPILOGUE_MOMENTS = 24 };
static const char *const hl_epilogue_moments_texts[] = {
    HL_EPILOGUES_ALL, [HL_EPILOGUE_MOMENTS] = "x, mean_rows(x), var_rows(x)", NULL};
static const hl_gemm_activation hl_epilogue_activations[] = {HL_GEMM_NONE, HL_GEMM_RELU,
                                                             HL_GEMM_GELU};

/* Operands by number in args; 0: there is none. */
typedef struct hl_epilogue {
    int32_t scale, shift, residual;
    bool has_moments; /* results 1 and 2 */
    hl_gemm_activation activation;
} hl_epilogue;

/* Of a node whose operand 2, where it has one, is its bias. */
static inline hl_epilogue hl_epilogue_make(const hl_graph *graph, const hl_node *node)
{
    int form = hl_fusion_find(graph, node, hl_epilogue_moments_texts), columns = form / 6;
    int32_t next = hl_node_epilogue_in(node);
    hl_epilogue e = {.has_moments = form == HL_EPILOGUE_MOMENTS};
    if (hl_node_anchor_in(node) > 2) e.shift = 2;
    if (e.has_moments) return e;
    e.activation = hl_epilogue_activations[form % 3];
    if (columns & 2) e.scale = next++;
    if (columns & 1) e.shift = next++;
    if (form / 3 % 2) e.residual = next;
    return e;
}

/* Can a kernel take it? */
static inline hl_status hl_epilogue_require(const hl_graph *graph, const hl_node *node,
                                            const hl_epilogue *e, hl_reason *out_why_not)
{
    bool has_bias = hl_node_anchor_in(node) > 2;
    if (has_bias && (e->scale || e->shift != 2))
        return hl_reason_set(out_why_not, "needs no bias before a scale or another shift");
    if (e->residual &&
        !hl_type_equal(hl_node_in_type(graph, node, e->residual), hl_node_out_type(graph, node, 0)))
        return hl_reason_set(out_why_not, "needs a residual of the result's type");
    return HL_OK;
}

static inline const float *hl_epilogue_arg(void *const *args, int32_t number)
{
    return number ? args[number] : NULL;
}

/* The steps for a result whose rows lie ld elements apart. */
static inline hl_gemm_epilogue hl_epilogue_steps(const hl_epilogue *e, void *const *args,
                                                 int64_t ld)
{
    return (hl_gemm_epilogue){.alpha = 1,
                              .scale = hl_epilogue_arg(args, e->scale),
                              .bias = hl_epilogue_arg(args, e->shift),
                              .residual = hl_epilogue_arg(args, e->residual),
                              .ld_residual = ld,
                              .activation = e->activation};
}

/* The same from this row and column of the result on. */
static inline void hl_epilogue_move(hl_gemm_epilogue *steps, int64_t row, int64_t col)
{
    if (steps->scale) steps->scale += col;
    if (steps->bias) steps->bias += col;
    if (steps->residual) steps->residual += row * steps->ld_residual + col;
}

#endif
