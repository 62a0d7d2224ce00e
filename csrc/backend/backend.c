/* Registry of backends and the choice of a kernel: the first of the device's list that accepts. */
#include "backend/backend.h"

#include <stdarg.h>
#include <string.h>

#include "base/log.h"

hl_status hl_reason_set(hl_reason *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    hl_text_format(reason->text, sizeof reason->text, format, args);
    va_end(args);
    return HL_ERROR_CONFIG;
}

static hl_status check_fusion(const hl_kernel *kernel, const hl_graph *graph, const hl_node *node,
                              hl_reason *out_why_not)
{
    char text[HL_FUSION_TEXT];
    if (hl_fusion_find(graph, node, kernel->fusions) >= 0) return HL_OK;
    hl_fusion_format(graph, node, text);
    return hl_reason_set(out_why_not, "needs no programs, or some that it takes, got %.100s", text);
}

/* Does it read and make the saved values of this node in the forms that they have? */
static hl_status check_forms(const hl_graph *graph, const hl_node *node, const hl_kernel_req *req,
                             hl_reason *out_why_not)
{
    for (int32_t i = 0; i < node->n_in; i++) {
        uint32_t form = hl_graph_form(graph, node->in[i]);
        uint32_t read = i < HL_ANCHOR_INS ? req->form_in[i] : 0;
        if (form != read)
            return hl_reason_set(out_why_not, "needs operand %d in form %u, got form %u", (int)i,
                                 read, form);
    }
    for (int32_t j = 0; j < node->n_out; j++) {
        uint32_t want = graph->values[node->out + j].form;
        uint32_t got = j < HL_KERNEL_PLACES ? req->saved[j].form : 0;
        if (want && want != got)
            return hl_reason_set(out_why_not, "output %d must have form %u, got form %u", (int)j,
                                 want, got);
    }
    return HL_OK;
}

static hl_status check_order(const hl_kernel_req *req, hl_reason *out_why_not)
{
    char text[HL_SHAPE_TEXT];
    hl_shape order = hl_shape_make(req->order.n, req->order.at);
    if (order.rank == 0) return HL_OK;
    return hl_reason_set(out_why_not, "needs its dims in the order %s",
                         hl_shape_format(&order, text));
}

static hl_status check_beside(hl_device *device, const hl_graph *graph, hl_node_id node,
                              const hl_kernel *kernel, hl_reason *out_why_not)
{
    bool is_beside = kernel->is_horizontal && kernel->is_horizontal(device, graph, &node, 1);
    return is_beside ? HL_OK : hl_reason_set(out_why_not, "is not one launch with others");
}

/* What is asked for beside the op. */
enum { DETERMINISTIC = 1, IN_ANY_ORDER = 2, BESIDE_OTHERS = 4 };

/* *out_kernel NULL: every kernel refused, and *out_reason is the last one's. */
static hl_status ask_kernels(hl_device *device, const hl_graph *graph, hl_node_id node, int asked,
                             const hl_kernel **out_kernel, hl_kernel_req *out_req,
                             hl_reason *out_reason)
{
    *out_kernel = NULL;
    hl_op op = graph->nodes[node].op;
    const hl_kernel *const *list = device->ops->kernels(device, op);
    if (!list || !*list) hl_reason_set(out_reason, "there is none for this op");
    for (; list && *list; list++) {
        *out_req = (hl_kernel_req){0};
        hl_status status = check_fusion(*list, graph, &graph->nodes[node], out_reason);
        if (status == HL_OK) status = (*list)->query(device, graph, node, out_req, out_reason);
        if (status == HL_OK) status = check_forms(graph, &graph->nodes[node], out_req, out_reason);
        if (status == HL_OK && asked & DETERMINISTIC && !out_req->deterministic)
            status = hl_reason_set(out_reason, "%s is not deterministic, as was asked for",
                                   (*list)->name);
        if (status == HL_OK && !(asked & IN_ANY_ORDER)) status = check_order(out_req, out_reason);
        if (status == HL_OK && asked & BESIDE_OTHERS)
            status = check_beside(device, graph, node, *list, out_reason);
        if (status == HL_OK) {
            if (out_req->grain < 1) out_req->grain = 1;
            *out_kernel = *list;
            return HL_OK;
        }
        if (status != HL_ERROR_CONFIG)
            return hl_status_context(status, "%s: %s", hl_op_get(op)->name, (*list)->name);
        hl_log(HL_LOG_DEBUG, "node %d: not %s: %s", (int)node, (*list)->name, out_reason->text);
    }
    *out_req = (hl_kernel_req){0};
    return HL_OK;
}

hl_status hl_kernel_find(hl_device *device, const hl_graph *graph, hl_node_id node,
                         bool deterministic, const hl_kernel **out_kernel, hl_kernel_req *out_req)
{
    hl_reason reason = {""};
    int asked = deterministic ? DETERMINISTIC : 0;
    return ask_kernels(device, graph, node, asked, out_kernel, out_req, &reason);
}

hl_status hl_kernel_find_in_any_order(hl_device *device, const hl_graph *graph, hl_node_id node,
                                      bool deterministic, const hl_kernel **out_kernel,
                                      hl_kernel_req *out_req)
{
    hl_reason reason = {""};
    int asked = (deterministic ? DETERMINISTIC : 0) | IN_ANY_ORDER;
    return ask_kernels(device, graph, node, asked, out_kernel, out_req, &reason);
}

hl_status hl_kernel_find_beside(hl_device *device, const hl_graph *graph, hl_node_id node,
                                bool deterministic, const hl_kernel **out_kernel,
                                hl_kernel_req *out_req)
{
    hl_reason reason = {""};
    int asked = (deterministic ? DETERMINISTIC : 0) | BESIDE_OTHERS;
    return ask_kernels(device, graph, node, asked, out_kernel, out_req, &reason);
}

hl_status hl_kernel_select(hl_device *device, const hl_graph *graph, hl_node_id node,
                           bool deterministic, const hl_kernel **out_kernel, hl_kernel_req *out_req)
{
    hl_reason reason = {""};
    int asked = deterministic ? DETERMINISTIC : 0;
    HL_TRY(ask_kernels(device, graph, node, asked, out_kernel, out_req, &reason));
    if (*out_kernel) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE, "%s: the device must have a kernel, got none on %s (%s)",
                         hl_op_get(graph->nodes[node].op)->name, device->name, reason.text);
}

hl_status hl_registry_add(hl_registry *registry, const hl_backend *backend)
{
    if (hl_registry_find(registry, backend->name))
        return hl_status_set(HL_ERROR_CONFIG, "registry: a backend is added once, got %s again",
                             backend->name);
    if (registry->n == HL_REGISTRY_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "registry: holds at most %d backends, got %s too",
                             (int)HL_REGISTRY_MAX, backend->name);
    registry->backend[registry->n++] = backend;
    return HL_OK;
}

const hl_backend *hl_registry_find(const hl_registry *registry, const char *name)
{
    for (int i = 0; i < registry->n; i++)
        if (strcmp(registry->backend[i]->name, name) == 0) return registry->backend[i];
    return NULL;
}
