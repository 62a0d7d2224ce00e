/* check_finite and check_range: the first element that may not be there.
 *
 * A run is looked through in blocks by a loop without branches, which compilers turn into vector
 * code; only a block that has a bad element is searched for it. */
#include "args.h"
#include "numpy_api.h"

enum { BLOCK = 1024 };

/* Looks for the first i in [0, n) of which `is_bad(x[i])` holds. */
#define SCAN(type, is_bad)                                                                         \
    do {                                                                                           \
        const type *x = data;                                                                      \
        for (int64_t begin = 0; begin < n; begin += BLOCK) {                                       \
            int64_t end = n - begin < BLOCK ? n : begin + BLOCK;                                   \
            type any = 0;                                                                          \
            for (int64_t i = begin; i < end; i++) any |= (type)(is_bad(x[i]));                     \
            for (int64_t i = begin; any && i < end; i++)                                           \
                if (is_bad(x[i])) return i;                                                        \
        }                                                                                          \
        return -1;                                                                                 \
    } while (0)

/* NaN and infinity are the values whose exponent has all bits. */
#define IS_BAD_16(x) (((x) & 0x7C00) == 0x7C00)
#define IS_BAD_32(x) (((x) & 0x7F800000) == 0x7F800000)
#define IS_BAD_64(x) (((x) & 0x7FF0000000000000) == 0x7FF0000000000000)

static int64_t scan_16(const void *data, int64_t n)
{
    SCAN(uint16_t, IS_BAD_16);
}

static int64_t scan_32(const void *data, int64_t n)
{
    SCAN(uint32_t, IS_BAD_32);
}

static int64_t scan_64(const void *data, int64_t n)
{
    SCAN(uint64_t, IS_BAD_64);
}

static int64_t find_not_finite(void *context, const void *data, char kind, size_t bytes, int64_t n)
{
    (void)context, (void)kind;
    return bytes == 2 ? scan_16(data, n) : bytes == 4 ? scan_32(data, n) : scan_64(data, n);
}

HL_PY_FAST(hl_py_check_finite)
{
    if (!hl_py_args_count("check_finite", n_args, 1, 1)) return NULL;
    return hl_py_array_scan(hl_py_state_of_module(module), args[0], "check_finite", "f",
                            "float16, float32 or float64", find_not_finite, NULL);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

typedef struct scan_range {
    int64_t low, high; /* allowed, both ends */
} scan_range;

/* With u = x - low in unsigned arithmetic, x is outside exactly when u > span. */
#define IS_OUTSIDE(x) ((unsigned_type)((x) - low) > span)

/* The same for a span below half of the type's values: then u or span - u has its highest bit set.
 * Unlike an unsigned comparison that is vector code everywhere (1.9 times as fast for int64). */
#define HIGH_BITS(x)                                                                               \
    ((unsigned_type)((x) - low) | (unsigned_type)(span - (unsigned_type)((x) - low)))

#define RANGE_SCAN_SHORT                                                                           \
    do {                                                                                           \
        const unsigned_type *x = data;                                                             \
        for (int64_t begin = 0; begin < n; begin += BLOCK) {                                       \
            int64_t end = n - begin < BLOCK ? n : begin + BLOCK;                                   \
            unsigned_type any = 0;                                                                 \
            for (int64_t i = begin; i < end; i++) any |= HIGH_BITS(x[i]);                          \
            for (int64_t i = begin; any & top && i < end; i++)                                     \
                if (IS_OUTSIDE(x[i])) return i;                                                    \
        }                                                                                          \
        return -1;                                                                                 \
    } while (0)

/* The range cut to what the type holds; when nothing is left of it, all is outside. */
#define RANGE_SCAN(name, type, unsigned_of_type, least, most)                                      \
    static int64_t name(const scan_range *range, const void *data, int64_t n)                      \
    {                                                                                              \
        typedef unsigned_of_type unsigned_type;                                                    \
        const unsigned_type top = (unsigned_type)((unsigned_type)1 << (8 * sizeof(type) - 1));     \
        if (range->low > range->high || range->high < (least) || range->low > (most))              \
            return n > 0 ? 0 : -1;                                                                 \
        unsigned_type low = (unsigned_type)(range->low < (least) ? (least) : range->low);          \
        unsigned_type high = (unsigned_type)(range->high > (most) ? (most) : range->high);         \
        unsigned_type span = (unsigned_type)(high - low);                                          \
        if (span < top) RANGE_SCAN_SHORT;                                                          \
        SCAN(unsigned_type, IS_OUTSIDE);                                                           \
    }

RANGE_SCAN(scan_i8, int8_t, uint8_t, INT8_MIN, INT8_MAX)
RANGE_SCAN(scan_i16, int16_t, uint16_t, INT16_MIN, INT16_MAX)
RANGE_SCAN(scan_i32, int32_t, uint32_t, INT32_MIN, INT32_MAX)
RANGE_SCAN(scan_i64, int64_t, uint64_t, INT64_MIN, INT64_MAX)
RANGE_SCAN(scan_u8, uint8_t, uint8_t, 0, UINT8_MAX)
RANGE_SCAN(scan_u16, uint16_t, uint16_t, 0, UINT16_MAX)
RANGE_SCAN(scan_u32, uint32_t, uint32_t, 0, UINT32_MAX)
/* No bound lies above INT64_MAX, and what does is outside. */
RANGE_SCAN(scan_u64, uint64_t, uint64_t, 0, INT64_MAX)

static int64_t find_outside(void *context, const void *data, char kind, size_t bytes, int64_t n)
{
    switch (kind == 'i' ? -(int)bytes : (int)bytes) {
    case -1: return scan_i8(context, data, n);
    case -2: return scan_i16(context, data, n);
    case -4: return scan_i32(context, data, n);
    case -8: return scan_i64(context, data, n);
    case 1: return scan_u8(context, data, n);
    case 2: return scan_u16(context, data, n);
    case 4: return scan_u32(context, data, n);
    default: return scan_u64(context, data, n);
    }
}

HL_PY_FAST(hl_py_check_range)
{
    hl_py_state *state = hl_py_state_of_module(module);
    scan_range range;
    if (!hl_py_args_count("check_range", n_args, 3, 3) ||
        !hl_py_int(state, args[1], "low", INT64_MIN, INT64_MAX, &range.low) ||
        !hl_py_int(state, args[2], "high", INT64_MIN + 1, INT64_MAX, &range.high))
        return NULL;
    range.high--;
    return hl_py_array_scan(state, args[0], "check_range", "iub", "an integer or bool",
                            find_outside, &range);
}
