/* Plans of the real cuDNN without a GPU: convolutions and attention are read from standard input, a
 * line each, and planned for the GPU that a description says:
 *
 *     check_cudnn DESCRIPTION.json ARCH STUB < convolutions
 *
 * A line: op dtype result_dtype N C O groups n in.. kernel.. stride.. dilation.. before.. after..
 * fusion, where op is conv, conv_bias, conv_transpose or conv_weight_grad, n the spatial dims, and
 * fusion the text of a program, to the end of the line; or: op dtype B H Hk L S E Ev causal, where
 * op is attention or attention_grad. Printed is what the kernel's query said. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/dnn_attention.h"
#include "kernels/cuda/dnn_conv.h"
#include "kernels/cuda/internal.h"
#include "tests/c/fusion_case.h"
#include "tests/cuda/fake_device.h"

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    if (!file || !fread(text, 1, (1 << 16) - 1, file)) check_fail(__FILE__, __LINE__, "%s", path);
    if (file) fclose(file);
    return text;
}

enum { LINE = 512 };
typedef struct conv_line {
    char op[32], dtype[16], result[16], fusion[HL_FUSION_TEXT];
    int64_t N, C, O, groups;
    int n;
    hl_ints in, kernel, stride, dilation, before, after, out;
} conv_line;

static bool read_ints(char **at, int n, hl_ints *out_ints)
{
    out_ints->n = n;
    for (int i = 0; i < n; i++) out_ints->at[i] = strtoll(*at, at, 10);
    return true;
}

static bool read_line(char *text, conv_line *l)
{
    char *at;
    int used = 0;
    *l = (conv_line){.n = 0};
    if (sscanf(text, "%31s %15s %15s%n", l->op, l->dtype, l->result, &used) != 3) return false;
    at = text + used;
    l->N = strtoll(at, &at, 10), l->C = strtoll(at, &at, 10), l->O = strtoll(at, &at, 10);
    l->groups = strtoll(at, &at, 10), l->n = (int)strtoll(at, &at, 10);
    hl_ints *lists[] = {&l->in, &l->kernel, &l->stride, &l->dilation, &l->before, &l->after};
    for (int i = 0; i < 6; i++) read_ints(&at, l->n, lists[i]);
    sscanf(at, " %191[^\n]", l->fusion);
    l->out.n = l->n;
    for (int d = 0; d < l->n; d++)
        l->out.at[d] = (l->in.at[d] + l->before.at[d] + l->after.at[d] -
                        l->dilation.at[d] * (l->kernel.at[d] - 1) - 1) /
                           l->stride.at[d] +
                       1;
    return true;
}

static hl_dtype find_dtype(const char *name)
{
    return strcmp(name, "bf16") == 0  ? HL_DTYPE_BF16
           : strcmp(name, "f16") == 0 ? HL_DTYPE_F16
                                      : HL_DTYPE_F32;
}

static hl_shape make_shape(int64_t n, const hl_ints *spatial, int64_t c, bool last)
{
    hl_shape shape = {.rank = 0};
    shape.dim[shape.rank++] = n;
    if (!last) shape.dim[shape.rank++] = c;
    for (int d = 0; d < spatial->n; d++) shape.dim[shape.rank++] = spatial->at[d];
    if (last) shape.dim[shape.rank++] = c;
    return shape;
}

static hl_graph *make_graph(const conv_line *l)
{
    hl_graph *graph;
    hl_dtype dtype = find_dtype(l->dtype);
    hl_type x = {dtype, make_shape(l->N, &l->in, l->C, true)},
            y = {dtype, make_shape(l->N, &l->out, l->O, true)},
            w = {dtype, make_shape(l->O, &l->kernel, l->C / l->groups, false)};
    hl_attrs attrs = {.conv = {.stride = l->stride,
                               .dilation = l->dilation,
                               .before = l->before,
                               .after = l->after,
                               .groups = l->groups,
                               .channels_last = true,
                               .float32_out = strcmp(l->dtype, l->result) != 0,
                               .tf32 = dtype == HL_DTYPE_F32 && strcmp(l->result, "tf32") == 0}};
    hl_id in[6], out;
    int n_in = 2;
    hl_op op = HL_OP_CONV;
    const hl_type *a = &x, *b = &w;
    if (strcmp(l->op, "conv_transpose") == 0)
        op = HL_OP_CONV_TRANSPOSE, a = &y, attrs.conv.size = l->in;
    if (strcmp(l->op, "conv_weight_grad") == 0)
        op = HL_OP_CONV_WEIGHT_GRAD, a = &y, b = &x, attrs.conv.size = l->kernel;
    if (dtype == HL_DTYPE_F32) attrs.conv.float32_out = false;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", *a, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", *b, &in[1]));
    if (strcmp(l->op, "conv_bias") == 0) {
        hl_type bias = {HL_DTYPE_F32, hl_shape_1d(l->O)};
        CHECK_OK(hl_graph_input(graph, "bias", bias, &in[2]));
        n_in++;
    }
    hl_type whole = op == HL_OP_CONV ? y : x;
    hl_type columns = {HL_DTYPE_F32, hl_shape_1d(op == HL_OP_CONV ? l->O : l->C)};
    for (const char *name = "yzw"; *name; name++) {
        char text[16];
        if (!fusion_reads(l->fusion, *name)) continue;
        snprintf(text, sizeof text, "columns(%c)", *name);
        CHECK_OK(hl_graph_input(graph, "beside", strstr(l->fusion, text) ? columns : whole,
                                &in[n_in++]));
    }
    if (*l->fusion)
        CHECK_OK(fusion_add(graph, op, in, n_in, &attrs, l->fusion, &out));
    else
        CHECK_OK(hl_graph_add(graph, op, in, n_in, &attrs, &out));
    return graph;
}

/* The graph of a line of attention, which has no other nodes than inputs and that. */
static hl_graph *make_attention(const char *text)
{
    char op[32], type[16];
    long long B, H, Hk, L, S, E, Ev;
    int is_causal, n_in = 0;
    if (sscanf(text, "%31s %15s %lld %lld %lld %lld %lld %lld %lld %d", op, type, &B, &H, &Hk, &L,
               &S, &E, &Ev, &is_causal) != 10)
        return NULL;
    hl_dtype dtype = find_dtype(type);
    bool is_grad = strcmp(op, "attention_grad") == 0;
    hl_type q = {dtype, {4, {B, H, L, E}}}, k = {dtype, {4, {B, Hk, S, E}}},
            v = {dtype, {4, {B, Hk, S, Ev}}}, out = {dtype, {4, {B, H, L, Ev}}},
            lse = {HL_DTYPE_F32, {4, {2, B, H, L}}};
    const hl_type forward[] = {q, k, v}, grad[] = {out, q, k, v, out, lse};
    hl_attrs attrs = {.attention = {.scale = 0.125, .is_causal = is_causal}};
    hl_graph *graph;
    hl_id in[6], node;
    CHECK_OK(hl_graph_create(&graph));
    for (; n_in < (is_grad ? 6 : 3); n_in++)
        CHECK_OK(hl_graph_input(graph, "in", is_grad ? grad[n_in] : forward[n_in], &in[n_in]));
    CHECK_OK(hl_graph_add(graph, is_grad ? HL_OP_ATTENTION_GRAD : HL_OP_ATTENTION, in, n_in, &attrs,
                          &node));
    return graph;
}

/* By which plans the graph's last node is computed. */
static hl_status find_plans(hl_device *device, const hl_graph *graph, hl_node_id node,
                            const hl_dnn_plans **out_plans, hl_reason *out_why_not)
{
    hl_dnn_conv conv;
    hl_dnn_attention attention;
    hl_op op = graph->nodes[node].op;
    bool is_attention = op == HL_OP_ATTENTION || op == HL_OP_ATTENTION_GRAD;
    if (is_attention ? !hl_dnn_attention_make(device, graph, node, &attention, out_why_not)
                     : !hl_dnn_conv_make(device, graph, node, &conv, out_why_not))
        return HL_ERROR_CONFIG;
    hl_dnn_question question = is_attention ? hl_dnn_attention_question(device, &attention)
                                            : hl_dnn_conv_question(device, &conv);
    return hl_dnn_plans_find(device, &question, false, false, out_plans, out_why_not);
}

/* What the kernel's query says of the graph's last node, and by which plans. */
static void ask(hl_device *device, hl_graph *graph, const char *text)
{
    hl_node_id node = (hl_node_id)graph->n_nodes - 1;
    const hl_kernel *kernel = device->ops->kernels(device, graph->nodes[node].op)[0];
    hl_kernel_req req = {0};
    hl_reason why_not = {""};
    const hl_dnn_plans *plans;
    hl_status status = kernel->query(device, graph, node, &req, &why_not);
    if (status == HL_OK) status = find_plans(device, graph, node, &plans, &why_not);
    if (status == HL_OK)
        printf("yes %s, scratch %zu: %s\n", plans->plan[0].name, req.scratch_bytes, text);
    else
        printf("no, %s: %s\n", status == HL_ERROR_CONFIG ? why_not.text : hl_status_message(),
               text);
    hl_graph_destroy(graph);
}

int main(int argc, char **argv)
{
    conv_line l;
    char text[LINE];
    hl_reason why_not;
    if (argc != 4 || !dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL)) return 2;
    char *description = read_file(argv[1]);
    hl_device *device = fake_device_open(&(hl_fake_config){.arch = atoi(argv[2])});
    hl_status status = hl_cudnn_describe(device, description, &why_not);
    if (status != HL_OK) printf("no, %s\n", why_not.text);
    while (status == HL_OK && fgets(text, sizeof text, stdin)) {
        text[strcspn(text, "\n")] = '\0';
        hl_graph *graph = strncmp(text, "attention", 9) == 0 ? make_attention(text)
                          : read_line(text, &l)              ? make_graph(&l)
                                                             : NULL;
        if (graph) ask(device, graph, text);
    }
    free(description);
    fake_device_close(device);
    return CHECK_DONE();
}
