/* The table of attribute schemas, made from attrs.def: a function for each, in which `self` is the
 * schema's struct. */
#include "ir/attrs.h"

#include <string.h>

#define HL_DEFAULT_int(value)   .default_int = value
#define HL_DEFAULT_flag(value)  .default_int = value
#define HL_DEFAULT_dtype(value) .default_int = value
#define HL_DEFAULT_float(value) .default_float = value
#define HL_DEFAULT_ints(value)  .default_int = value
#define HL_DEFAULT_text(value)  .default_int = value /* NULL */

#define REQUIRED(kind_, name_)                                                                     \
    {.name = #name_, .kind = HL_ATTR_##kind_, .offset = offsetof(self, name_), .required = true},
#define OPTIONAL(kind_, name_, value)                                                              \
    {.name = #name_,                                                                               \
     .kind = HL_ATTR_##kind_,                                                                      \
     .offset = offsetof(self, name_),                                                              \
     HL_DEFAULT_##kind_(value)},
#define HL_ATTRS(schema, fields)                                                                   \
    static const hl_attr_info *list_##schema(int *out_n)                                           \
    {                                                                                              \
        typedef hl_attrs_##schema self;                                                            \
        static const hl_attr_info list[] = {fields};                                               \
        *out_n = (int)(sizeof list / sizeof *list);                                                \
        return list;                                                                               \
    }
#include "ir/attrs.def"
#undef HL_ATTRS

static const hl_attr_info *list_none(int *out_n)
{
    *out_n = 0;
    return NULL;
}

const hl_attr_info *hl_schema_attrs(hl_schema schema, int *out_n)
{
    static const hl_attr_info *(*const lists[HL_SCHEMA_COUNT])(int *) = {
        [HL_SCHEMA_none] = list_none,
#define HL_ATTRS(schema, fields) [HL_SCHEMA_##schema] = list_##schema,
#include "ir/attrs.def"
#undef HL_ATTRS
    };
    return lists[schema](out_n);
}

const hl_attr_info *hl_schema_find(hl_schema schema, const char *name)
{
    int n;
    const hl_attr_info *list = hl_schema_attrs(schema, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

void hl_attrs_init(hl_schema schema, hl_attrs *out_attrs)
{
    int n;
    const hl_attr_info *list = hl_schema_attrs(schema, &n);
    memset(out_attrs, 0, sizeof *out_attrs);
    for (int i = 0; i < n; i++) {
        if (list[i].kind == HL_ATTR_float)
            *hl_attrs_float(out_attrs, &list[i]) = list[i].default_float;
        else if (list[i].kind != HL_ATTR_ints && list[i].kind != HL_ATTR_text)
            hl_attrs_int_set(out_attrs, &list[i], list[i].default_int);
    }
}

int64_t hl_attrs_int(const hl_attrs *attrs, const hl_attr_info *info)
{
    const void *at = (const char *)attrs + info->offset;
    if (info->kind == HL_ATTR_flag) return *(const hl_attr_flag *)at;
    if (info->kind == HL_ATTR_dtype) return *(const hl_attr_dtype *)at;
    return *(const hl_attr_int *)at;
}

void hl_attrs_int_set(hl_attrs *attrs, const hl_attr_info *info, int64_t value)
{
    void *at = (char *)attrs + info->offset;
    if (info->kind == HL_ATTR_flag)
        *(hl_attr_flag *)at = value != 0;
    else if (info->kind == HL_ATTR_dtype)
        *(hl_attr_dtype *)at = (hl_dtype)value;
    else
        *(hl_attr_int *)at = value;
}
