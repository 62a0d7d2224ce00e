/* Attributes of a node: what is fixed when it is added and is no operand.
 *
 * ir/attrs.def has the schemas; from it come the struct of each, the union of all (hl_attrs), the
 * accessors and the table by which attributes are parsed, printed and saved by name. Attributes are
 * values without pointers into a graph, texts apart, so a kernel may keep a copy. A list has at
 * most as many entries as a shape has dims. Rejected: numbered slots (a use does not say what it
 * reads), a dictionary (every read a search), lists of any length (owned memory in every copy). */
#ifndef HL_IR_ATTRS_H
#define HL_IR_ATTRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ir/dtype.h"
#include "ir/shape.h"

typedef struct hl_ints {
    int32_t n;
    int64_t at[HL_MAX_RANK];
} hl_ints;

static inline hl_ints hl_ints_make(const int64_t *at, int32_t n)
{
    hl_ints list = {n, {0}};
    for (int32_t i = 0; i < n; i++) list.at[i] = at[i];
    return list;
}
/* The dims of a shape. */
static inline hl_ints hl_ints_of(const hl_shape *shape)
{
    return hl_ints_make(shape->dim, shape->rank);
}

typedef enum hl_attr_kind {
    HL_ATTR_int,
    HL_ATTR_flag,
    HL_ATTR_float,
    HL_ATTR_dtype,
    HL_ATTR_ints,
    HL_ATTR_text
} hl_attr_kind;

/* The type in C of each kind. */
typedef int64_t hl_attr_int;
typedef bool hl_attr_flag;
typedef double hl_attr_float;
typedef hl_dtype hl_attr_dtype;
typedef hl_ints hl_attr_ints;
typedef const char *hl_attr_text;

#define REQUIRED(kind, name)        hl_attr_##kind name;
#define OPTIONAL(kind, name, value) hl_attr_##kind name;
#define HL_ATTRS(schema, fields)                                                                   \
    typedef struct hl_attrs_##schema {                                                             \
        fields                                                                                     \
    } hl_attrs_##schema;
#include "ir/attrs.def"
#undef HL_ATTRS
#undef OPTIONAL
#undef REQUIRED

typedef enum hl_schema {
    HL_SCHEMA_none, /* no attributes */
#define HL_ATTRS(schema, fields) HL_SCHEMA_##schema,
#include "ir/attrs.def"
#undef HL_ATTRS
    HL_SCHEMA_COUNT
} hl_schema;

typedef union hl_attrs {
#define HL_ATTRS(schema, fields) hl_attrs_##schema schema;
#include "ir/attrs.def"
#undef HL_ATTRS
} hl_attrs;

/* One attribute of a schema. */
typedef struct hl_attr_info {
    const char *name;
    hl_attr_kind kind;
    size_t offset; /* in hl_attrs */
    bool required;
    int64_t default_int;  /* of int, flag, dtype */
    double default_float; /* of float; the default of ints is the empty list, of text NULL */
} hl_attr_info;

/* The attributes of a schema in order. */
const hl_attr_info *hl_schema_attrs(hl_schema schema, int *out_n);
/* NULL when the schema has none of that name. */
const hl_attr_info *hl_schema_find(hl_schema schema, const char *name);
/* Defaults; the caller then sets what was given. */
void hl_attrs_init(hl_schema schema, hl_attrs *out_attrs);

/* An attribute's value, by its row of the table: the first two for int, flag and dtype. */
int64_t hl_attrs_int(const hl_attrs *attrs, const hl_attr_info *info);
void hl_attrs_int_set(hl_attrs *attrs, const hl_attr_info *info, int64_t value);
static inline double *hl_attrs_float(const hl_attrs *attrs, const hl_attr_info *info)
{
    return (double *)((char *)attrs + info->offset);
}
static inline hl_ints *hl_attrs_ints(const hl_attrs *attrs, const hl_attr_info *info)
{
    return (hl_ints *)((char *)attrs + info->offset);
}
static inline const char **hl_attrs_text(const hl_attrs *attrs, const hl_attr_info *info)
{
    return (const char **)((char *)attrs + info->offset);
}

#endif
