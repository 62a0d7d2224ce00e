/* Graph: values, commits, order. Every adder first makes room and copies what it was given,
 * then infers on the side, and only then counts the new thing: a failure on the way leaves nothing
 * behind but unused arena bytes. */
#include "ir/graph.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "ir/control.h"

static const char control_store[] = "control";

bool hl_type_equal(const hl_type *a, const hl_type *b)
{
    return a->dtype == b->dtype && hl_shape_equal(&a->shape, &b->shape);
}

size_t hl_type_bytes(const hl_type *type)
{
    return (size_t)hl_shape_numel(&type->shape) * hl_dtype_bytes(type->dtype);
}

const char *hl_type_format(const hl_type *type, char *text)
{
    char shape[HL_SHAPE_TEXT];
    snprintf(text, HL_TYPE_TEXT, "%s %s", hl_dtype_name(type->dtype),
             hl_shape_format(&type->shape, shape));
    return text;
}

/* ---- the whole graph ------------------------------------------------------------------------- */

hl_status hl_graph_create(hl_graph **out_graph)
{
    *out_graph = NULL;
    void *memory;
    HL_TRY(hl_alloc_zero(sizeof(hl_graph), &memory));
    hl_graph *graph = memory;
    hl_arena_init(&graph->arena);
    graph->segment = HL_SEGMENT_MICRO;
    graph->control = HL_NONE;
    graph->float_dtype = HL_DTYPE_F32;
    *out_graph = graph;
    return HL_OK;
}

void hl_graph_destroy(hl_graph *graph)
{
    if (!graph) return;
    hl_free(graph->values);
    hl_free(graph->nodes);
    hl_free(graph->commits);
    hl_free(graph->stores);
    hl_free(graph->outputs);
    hl_free(graph->checkpoints);
    hl_free(graph->types);
    hl_arena_deinit(&graph->arena);
    hl_free(graph);
}

hl_status hl_graph_grow(void *list, int64_t *capacity, int64_t n, int64_t more, size_t bytes)
{
    void *memory;
    memcpy(&memory, list, sizeof memory);
    if (n + more > INT32_MAX)
        return hl_status_set(HL_ERROR_MEMORY, "graph: ids must fit in 31 bits, got %lld",
                             (long long)(n + more));
    HL_TRY(hl_alloc_grow(&memory, capacity, n + more, bytes));
    memcpy(list, &memory, sizeof memory);
    return HL_OK;
}

static hl_status copy_doubles(hl_arena *arena, const hl_type *type, const double *values,
                              const double **out_copy)
{
    const void *copy;
    hl_type as_double = {HL_DTYPE_F64, type->shape};
    HL_TRY(hl_arena_copy(arena, values, hl_type_bytes(&as_double), &copy));
    *out_copy = copy;
    return HL_OK;
}

/* ---- stores and leaves ----------------------------------------------------------------------- */

int32_t hl_graph_store_find(const hl_graph *graph, const char *name)
{
    for (int64_t i = 0; i < graph->n_stores; i++)
        if (strcmp(graph->stores[i].name, name) == 0) return (int32_t)i;
    return HL_NONE;
}

hl_status hl_graph_store(hl_graph *graph, const char *name, hl_dtype dtype, int64_t n,
                         int32_t *out_store)
{
    *out_store = HL_NONE;
    hl_shape shape = hl_shape_1d(n);
    HL_TRY(hl_shape_check(&shape, name));
    int32_t found = hl_graph_store_find(graph, name);
    if (found != HL_NONE) {
        const hl_store *store = &graph->stores[found];
        if (store->dtype != dtype || store->n != n)
            return hl_status_set(HL_ERROR_INTERNAL,
                                 "store %s: it must stay %s of %lld elements, got %s of %lld", name,
                                 hl_dtype_name(store->dtype), (long long)store->n,
                                 hl_dtype_name(dtype), (long long)n);
        *out_store = found;
        return HL_OK;
    }
    HL_TRY(hl_graph_grow(&graph->stores, &graph->cap_stores, graph->n_stores, 1, sizeof(hl_store)));
    hl_store store = {name, dtype, n, HL_NONE};
    HL_TRY(hl_arena_strdup(&graph->arena, store.name, &store.name));
    graph->stores[graph->n_stores] = store;
    *out_store = (int32_t)graph->n_stores++;
    return HL_OK;
}

hl_status hl_graph_store_rounded(hl_graph *graph, int32_t source, hl_dtype dtype,
                                 int32_t *out_store)
{
    const hl_store of = graph->stores[source];
    size_t bytes = strlen(of.name) + strlen(hl_dtype_name(dtype)) + 2;
    char *name;
    HL_TRY(hl_alloc(bytes, (void **)&name));
    snprintf(name, bytes, "%s.%s", of.name, hl_dtype_name(dtype));
    hl_status status = hl_graph_store(graph, name, dtype, of.n, out_store);
    if (status == HL_OK) graph->stores[*out_store].source = source;
    hl_free(name);
    return status;
}

/* Copies the name. */
static hl_status add_value(hl_graph *graph, hl_value value, hl_id *out_id)
{
    HL_TRY(hl_shape_check(&value.type.shape, value.name ? value.name : "constant"));
    HL_TRY(hl_graph_grow(&graph->values, &graph->cap_values, graph->n_values, 1, sizeof(hl_value)));
    HL_TRY(hl_arena_strdup(&graph->arena, value.name, &value.name));
    graph->values[graph->n_values] = value;
    *out_id = (hl_id)graph->n_values++;
    return HL_OK;
}

static hl_value make_leaf(hl_value_kind kind, hl_type type, const char *name)
{
    return (hl_value){.kind = kind, .type = type, .node = HL_NONE, .store = HL_NONE, .name = name};
}

hl_status hl_graph_leaf(hl_graph *graph, hl_value_kind kind, hl_type type, int32_t store,
                        int64_t offset, const char *name, hl_id *out_id)
{
    *out_id = HL_NONE;
    HL_TRY(hl_shape_check(&type.shape, name));
    if ((kind != HL_VALUE_PARAM && kind != HL_VALUE_STATE) || store < 0 || store >= graph->n_stores)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "%s: a leaf must be parameter or state in a store, got kind %d, "
                             "store %d of %lld",
                             name, (int)kind, store, (long long)graph->n_stores);
    const hl_store *owner = &graph->stores[store];
    int64_t n = hl_shape_numel(&type.shape);
    if (type.dtype != owner->dtype || offset < 0 || n > owner->n || offset > owner->n - n)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "%s: it must lie in store %s, %s of %lld elements, got %s, elements "
                             "%lld to %lld",
                             name, owner->name, hl_dtype_name(owner->dtype), (long long)owner->n,
                             hl_dtype_name(type.dtype), (long long)offset, (long long)(offset + n));
    hl_value value = make_leaf(kind, type, name);
    value.store = store;
    value.offset = offset;
    return add_value(graph, value, out_id);
}

hl_status hl_graph_input(hl_graph *graph, const char *name, hl_type type, hl_id *out_id)
{
    *out_id = HL_NONE;
    hl_value value = make_leaf(HL_VALUE_INPUT, type, name);
    value.store = graph->n_inputs;
    HL_TRY(add_value(graph, value, out_id));
    graph->n_inputs++;
    return HL_OK;
}

static hl_status add_dataset(hl_graph *graph, const char *name, hl_type type, bool is_streamed,
                             hl_id *out_id)
{
    *out_id = HL_NONE;
    hl_value value = make_leaf(HL_VALUE_DATASET, type, name);
    value.store = graph->n_datasets;
    value.is_streamed = is_streamed;
    HL_TRY(add_value(graph, value, out_id));
    graph->n_datasets++;
    return HL_OK;
}

hl_status hl_graph_dataset(hl_graph *graph, const char *name, hl_type type, hl_id *out_id)
{
    return add_dataset(graph, name, type, false, out_id);
}

hl_status hl_graph_streamed_dataset(hl_graph *graph, const char *name, hl_type type, hl_id *out_id)
{
    return add_dataset(graph, name, type, true, out_id);
}

static hl_status make_control_store(hl_graph *graph, int32_t *out_store)
{
    return hl_graph_store(graph, control_store, HL_DTYPE_U8, sizeof(hl_control), out_store);
}

hl_status hl_graph_scalar(hl_graph *graph, const char *name, hl_id *out_id)
{
    *out_id = HL_NONE;
    for (int64_t i = 0; i < graph->n_values; i++) {
        const hl_value *value = &graph->values[i];
        if (value->kind == HL_VALUE_SCALAR && strcmp(value->name, name) == 0) {
            *out_id = (hl_id)i;
            return HL_OK;
        }
    }
    if (graph->n_scalars == HL_CONTROL_SCALARS)
        return hl_status_set(HL_ERROR_CONFIG, "scalar %s: at most %d may be in use, got one more",
                             name, HL_CONTROL_SCALARS);
    hl_value value = make_leaf(HL_VALUE_SCALAR, (hl_type){HL_DTYPE_F32, hl_shape_scalar()}, name);
    HL_TRY(make_control_store(graph, &value.store));
    size_t slot_bytes = sizeof(((hl_control *)NULL)->scalar[0]);
    value.offset = (int64_t)(offsetof(hl_control, scalar) + (size_t)graph->n_scalars * slot_bytes);
    HL_TRY(add_value(graph, value, out_id));
    graph->n_scalars++;
    return HL_OK;
}

hl_status hl_graph_loss_scale(hl_graph *graph, hl_id *out_id)
{
    hl_type type = {HL_DTYPE_F32, hl_shape_scalar()};
    hl_value value = make_leaf(HL_VALUE_SCALAR, type, "control.loss_scale");
    *out_id = HL_NONE;
    HL_TRY(make_control_store(graph, &value.store));
    value.offset = (int64_t)offsetof(hl_control, scale);
    return add_value(graph, value, out_id);
}

hl_status hl_graph_control(hl_graph *graph, hl_id *out_id)
{
    *out_id = graph->control;
    if (graph->control != HL_NONE) return HL_OK;
    int32_t store;
    HL_TRY(make_control_store(graph, &store));
    hl_type type = {HL_DTYPE_U8, hl_shape_1d(sizeof(hl_control))};
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, control_store, out_id));
    graph->control = *out_id;
    return HL_OK;
}

hl_status hl_graph_const(hl_graph *graph, hl_type type, const void *data, hl_id *out_id)
{
    *out_id = HL_NONE;
    HL_TRY(hl_shape_check(&type.shape, "constant"));
    hl_value value = make_leaf(HL_VALUE_CONST, type, NULL);
    HL_TRY(hl_arena_copy(&graph->arena, data, hl_type_bytes(&type), &value.data));
    return add_value(graph, value, out_id);
}

/* ---- numbers --------------------------------------------------------------------------------- */

typedef union number_bytes {
    double f64;
    float f32;
    uint16_t half;
    int64_t i64;
    int32_t i32;
    int16_t i16;
    int8_t i8;
    uint8_t u8;
} number_bytes;

static number_bytes encode_number(hl_dtype dtype, double number)
{
    number_bytes bytes = {0};
    switch (dtype) {
    case HL_DTYPE_F32: bytes.f32 = (float)number; break;
    case HL_DTYPE_F64: bytes.f64 = number; break;
    case HL_DTYPE_BF16: bytes.half = hl_f32_to_bf16((float)number); break;
    case HL_DTYPE_F16: bytes.half = hl_f32_to_f16((float)number); break;
    case HL_DTYPE_I64: bytes.i64 = (int64_t)number; break;
    case HL_DTYPE_I32: bytes.i32 = (int32_t)number; break;
    case HL_DTYPE_I16: bytes.i16 = (int16_t)number; break;
    case HL_DTYPE_I8: bytes.i8 = (int8_t)number; break;
    case HL_DTYPE_U8: bytes.u8 = (uint8_t)number; break;
    default: bytes.u8 = number != 0; break;
    }
    return bytes;
}

static double decode_number(hl_dtype dtype, number_bytes bytes)
{
    switch (dtype) {
    case HL_DTYPE_F32: return bytes.f32;
    case HL_DTYPE_F64: return bytes.f64;
    case HL_DTYPE_BF16: return hl_bf16_to_f32(bytes.half);
    case HL_DTYPE_F16: return hl_f16_to_f32(bytes.half);
    case HL_DTYPE_I64: return (double)bytes.i64;
    case HL_DTYPE_I32: return bytes.i32;
    case HL_DTYPE_I16: return bytes.i16;
    case HL_DTYPE_I8: return bytes.i8;
    default: return bytes.u8;
    }
}

/* Whether an integer type holds the number, so that its conversion is defined. */
static bool fits_dtype(hl_dtype dtype, double number)
{
    char kind = hl_dtype_kind(dtype);
    if (kind == 'f' || kind == 'b') return true;
    int bits = 8 * (int)hl_dtype_bytes(dtype) - (kind == 'i');
    double limit = (double)(UINT64_C(1) << bits);
    return number > (kind == 'i' ? -limit - 1 : -1) && number >= -0x1p63 && number < limit;
}

static hl_status round_doubles(hl_arena *arena, const hl_type *type, const double *values,
                               const void **out_data)
{
    int64_t n = hl_shape_numel(&type->shape);
    size_t bytes = hl_dtype_bytes(type->dtype);
    void *data;
    HL_TRY(hl_arena_alloc(arena, n ? hl_type_bytes(type) : 1, &data));
    for (int64_t i = 0; i < n; i++) {
        number_bytes number = encode_number(type->dtype, values[i]);
        memcpy((char *)data + (size_t)i * bytes, &number, bytes);
    }
    *out_data = data;
    return HL_OK;
}

hl_status hl_graph_const_round(hl_graph *graph, hl_type type, const double *values, hl_id *out_id)
{
    *out_id = HL_NONE;
    HL_TRY(hl_shape_check(&type.shape, "constant"));
    if (!hl_dtype_is_float(type.dtype))
        return hl_status_set(HL_ERROR_DATA, "constant: must be of a floating type, got %s",
                             hl_dtype_name(type.dtype));
    hl_value value = make_leaf(HL_VALUE_CONST, type, NULL);
    HL_TRY(round_doubles(&graph->arena, &type, values, &value.data));
    HL_TRY(copy_doubles(&graph->arena, &type, values, &value.doubles));
    return add_value(graph, value, out_id);
}

hl_status hl_graph_number(hl_graph *graph, hl_dtype dtype, double number, hl_id *out_id)
{
    *out_id = HL_NONE;
    if (!fits_dtype(dtype, number))
        return hl_status_set(HL_ERROR_DATA, "constant: a number must fit in its dtype %s, got %g",
                             hl_dtype_name(dtype), number);
    hl_type type = {dtype, hl_shape_scalar()};
    if (hl_dtype_is_float(dtype)) return hl_graph_const_round(graph, type, &number, out_id);
    number_bytes bytes = encode_number(dtype, number);
    return hl_graph_const(graph, type, &bytes, out_id);
}

bool hl_graph_number_read(const hl_graph *graph, hl_id id, double *out_number)
{
    const hl_value *value = &graph->values[id];
    *out_number = 0;
    if (value->kind != HL_VALUE_CONST || hl_shape_numel(&value->type.shape) != 1) return false;
    number_bytes bytes = {0};
    memcpy(&bytes, value->data, hl_dtype_bytes(value->type.dtype));
    *out_number = decode_number(value->type.dtype, bytes);
    return true;
}

/* ---- commits, outputs, scope, order ---------------------------------------------------------- */

static const char *name_value(const hl_graph *graph, hl_id id)
{
    const char *name = graph->values[id].name;
    return name ? name : "a value without name";
}

static hl_status check_commit(const hl_graph *graph, const hl_commit *commit)
{
    hl_id target = commit->target, value = commit->value;
    if (target < 0 || target >= graph->n_values || value < 0 || value >= graph->n_values)
        return hl_status_set(HL_ERROR_INTERNAL, "commit: ids must be of the graph, got %d <- %d",
                             target, value);
    const hl_value *leaf = &graph->values[target];
    if (leaf->kind != HL_VALUE_PARAM && leaf->kind != HL_VALUE_STATE)
        return hl_status_set(HL_ERROR_TRACE,
                             "assign: the target must be a parameter or a buffer, got %s",
                             name_value(graph, target));
    hl_type type = graph->values[value].type;
    if (commit->added) type.dtype = leaf->type.dtype;
    if (!hl_type_equal(&leaf->type, &type)) {
        char want[HL_TYPE_TEXT], got[HL_TYPE_TEXT];
        return hl_status_set(HL_ERROR_SHAPE, "assign: %s must stay %s, got %s", leaf->name,
                             hl_type_format(&leaf->type, want),
                             hl_type_format(&graph->values[value].type, got));
    }
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (graph->commits[i].target == target && graph->commits[i].segment == commit->segment)
            return hl_status_set(HL_ERROR_TRACE, "assign: once in a step, got %s a second time",
                                 leaf->name);
    return HL_OK;
}

static hl_status add_commit(hl_graph *graph, hl_commit commit)
{
    HL_TRY(check_commit(graph, &commit));
    HL_TRY(hl_graph_grow(&graph->commits, &graph->cap_commits, graph->n_commits, 1,
                         sizeof(hl_commit)));
    graph->commits[graph->n_commits++] = commit;
    return HL_OK;
}

hl_status hl_graph_commit(hl_graph *graph, hl_id target, hl_id value)
{
    return add_commit(graph, (hl_commit){target, value, graph->segment, false});
}

hl_status hl_graph_accumulate(hl_graph *graph, hl_id target, hl_id value)
{
    return add_commit(graph, (hl_commit){target, value, graph->segment, true});
}

hl_status hl_graph_output(hl_graph *graph, hl_id value)
{
    if (value < 0 || value >= graph->n_values)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "output: it must be a value of the graph, got id %d", value);
    HL_TRY(hl_graph_grow(&graph->outputs, &graph->cap_outputs, graph->n_outputs, 1, sizeof(hl_id)));
    graph->outputs[graph->n_outputs++] = value;
    return HL_OK;
}

void hl_graph_stand_by(hl_graph *graph, const hl_node *node)
{
    graph->segment = node->segment;
    graph->fence = node->fence;
    graph->scope = node->scope;
    graph->gradient_of = node->gradient_of;
    graph->checkpoint = node->checkpoint;
}

hl_status hl_graph_scope(hl_graph *graph, const char *scope)
{
    if (scope && !*scope) scope = NULL;
    if (scope && graph->scope && strcmp(scope, graph->scope) == 0) return HL_OK;
    HL_TRY(hl_arena_strdup(&graph->arena, scope, &scope));
    graph->scope = scope;
    return HL_OK;
}

hl_status hl_graph_checkpoint_begin(hl_graph *graph)
{
    HL_TRY(hl_graph_grow(&graph->checkpoints, &graph->cap_checkpoints, graph->n_checkpoints, 1,
                         sizeof *graph->checkpoints));
    graph->checkpoints[graph->n_checkpoints] = graph->checkpoint;
    graph->checkpoint = (int32_t)++graph->n_checkpoints;
    return HL_OK;
}

void hl_graph_checkpoint_end(hl_graph *graph)
{
    if (graph->checkpoint) graph->checkpoint = graph->checkpoints[graph->checkpoint - 1];
}

hl_status hl_graph_reorder(hl_graph *graph, const hl_node_id *order, int64_t n)
{
    void *memory;
    size_t bytes;
    if (n < 0 || !hl_mul_size((size_t)n, sizeof(hl_node), &bytes)) bytes = SIZE_MAX;
    for (int64_t i = 0; i < n; i++)
        if (order[i] < 0 || order[i] >= graph->n_nodes)
            return hl_status_set(HL_ERROR_INTERNAL, "reorder: nodes must exist, got %d", order[i]);
    HL_TRY(hl_alloc(bytes, &memory));
    hl_node *nodes = memory;
    for (int64_t i = 0; i < graph->n_values; i++)
        if (graph->values[i].kind == HL_VALUE_ACT) graph->values[i].node = HL_NONE;
    for (int64_t i = 0; i < n; i++) {
        nodes[i] = graph->nodes[order[i]];
        for (int32_t j = 0; j < nodes[i].n_out; j++)
            graph->values[nodes[i].out + j].node = (hl_node_id)i;
    }
    hl_free(graph->nodes);
    graph->nodes = nodes;
    graph->n_nodes = graph->cap_nodes = n;
    return HL_OK;
}
