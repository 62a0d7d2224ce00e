/* Element types. */
#ifndef HL_IR_DTYPE_H
#define HL_IR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* code, name, bytes, kind: 'f' float, 'i' signed, 'u' unsigned, 'b' bool */
#define HL_DTYPES(X)                                                                               \
    X(HL_DTYPE_F32, "float32", 4, 'f')                                                             \
    X(HL_DTYPE_F64, "float64", 8, 'f')                                                             \
    X(HL_DTYPE_BF16, "bfloat16", 2, 'f')                                                           \
    X(HL_DTYPE_F16, "float16", 2, 'f')                                                             \
    X(HL_DTYPE_I64, "int64", 8, 'i')                                                               \
    X(HL_DTYPE_I32, "int32", 4, 'i')                                                               \
    X(HL_DTYPE_I16, "int16", 2, 'i')                                                               \
    X(HL_DTYPE_I8, "int8", 1, 'i')                                                                 \
    X(HL_DTYPE_U8, "uint8", 1, 'u')                                                                \
    X(HL_DTYPE_BOOL, "bool", 1, 'b')

typedef enum hl_dtype {
#define X(code, name, bytes, kind) code,
    HL_DTYPES(X)
#undef X
        HL_DTYPE_COUNT
} hl_dtype;

size_t hl_dtype_bytes(hl_dtype dtype);
const char *hl_dtype_name(hl_dtype dtype);
char hl_dtype_kind(hl_dtype dtype);
static inline bool hl_dtype_is_float(hl_dtype dtype)
{
    return hl_dtype_kind(dtype) == 'f';
}
/* bfloat16 or float16. */
static inline bool hl_dtype_is_16_bit(hl_dtype dtype)
{
    return dtype == HL_DTYPE_BF16 || dtype == HL_DTYPE_F16;
}
/* HL_DTYPE_COUNT when the name is unknown. */
hl_dtype hl_dtype_parse(const char *name);
/* torch's rule, without value-based cases: bool < integers < floats; of one kind the wider;
 * bfloat16 with float16 gives float32, int8 with uint8 int16. */
hl_dtype hl_dtype_promote(hl_dtype a, hl_dtype b);

#endif
