/* binary16 and bfloat16 over every code, and every rounding case between neighbouring codes. The
 * oracle for binary16 is the compiler's _Float16, for bfloat16 the definition. */
#include <math.h>

#include "base/half.h"
#include "tests/c/check.h"

static uint32_t bits_of(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
}

static float float_of(uint32_t word)
{
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static float oracle_f16_to_f32(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return (float)(bits & 0x8000 ? -size : size);
}

static bool same(float a, float b)
{
    return isnan(a) || isnan(b) ? isnan(a) && isnan(b) : bits_of(a) == bits_of(b);
}

static bool is_nan16(uint16_t bits)
{
    return (bits & 0x7FFF) > 0x7C00;
}

static uint16_t oracle_f32_to_f16(float value)
{
#ifdef __FLT16_MANT_DIG__
    _Float16 narrow = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &narrow, 2);
    return bits;
#else
    /* Nearest of the two codes around it, ties to the even one. */
    uint16_t low = 0, high = 0x7C00, sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (size >= 65520) return sign | 0x7C00;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (oracle_f16_to_f32(middle) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = oracle_f16_to_f32(low), above = high == 0x7C00 ? 65536 : oracle_f16_to_f32(high);
    double middle = (below + above) / 2;
    return sign | (size > middle || (size == middle && (low & 1)) ? high : low);
#endif
}

static void test_f16_codes(void)
{
    for (uint32_t code = 0; code < 65536; code++) {
        uint16_t bits = (uint16_t)code;
        float value = hl_f16_to_f32(bits);
        check_case("f16 code %04x", code);
        CHECK(same(value, oracle_f16_to_f32(bits)));
        uint16_t back = hl_f32_to_f16(value);
        CHECK(is_nan16(bits) ? back == (bits | 0x200) : back == bits);
        CHECK(!signbit(value) == !(bits & 0x8000));
    }
}

/* Around each code, and around the middle to the next one: the float below, at and above. */
static void test_f16_rounding(void)
{
    for (uint32_t code = 0; code < 0x7C00; code++) {
        float low = oracle_f16_to_f32((uint16_t)code);
        float high = code == 0x7BFF ? 65536 : oracle_f16_to_f32((uint16_t)(code + 1));
        float points[] = {low, low + (high - low) / 2, low + (high - low) / 4};
        for (int i = 0; i < 3; i++) {
            for (int step = -1; step <= 1; step++) {
                uint32_t word = bits_of(points[i]);
                if (word == 0 && step < 0) continue;
                float value = float_of(word + (uint32_t)step);
                check_case("f16 of %a", (double)value);
                CHECK_INT(hl_f32_to_f16(value), oracle_f32_to_f16(value));
                CHECK_INT(hl_f32_to_f16(-value), oracle_f32_to_f16(value) | 0x8000);
            }
        }
    }
    /* Over all floats, denormal and overflowing ones with them. */
    for (uint64_t word = 0; word < 0x7F800000; word += 4099) {
        float value = float_of((uint32_t)word);
        check_case("f16 of %a", (double)value);
        CHECK_INT(hl_f32_to_f16(value), oracle_f32_to_f16(value));
    }
    check_case("%s", "");
    CHECK_INT(hl_f32_to_f16(INFINITY), 0x7C00);
    CHECK_INT(hl_f32_to_f16(-INFINITY), 0xFC00);
    CHECK(is_nan16(hl_f32_to_f16(float_of(0x7F800001)))); /* the payload alone would vanish */
}

static void test_bf16(void)
{
    for (uint32_t code = 0; code < 65536; code++) {
        uint16_t bits = (uint16_t)code;
        float value = hl_bf16_to_f32(bits);
        bool is_nan = (bits & 0x7FFF) > 0x7F80;
        check_case("bf16 code %04x", code);
        CHECK(bits_of(value) == code << 16 && !isnan(value) == !is_nan);
        CHECK_INT(hl_f32_to_bf16(value), is_nan ? bits | 0x40 : bits);
        if ((bits & 0x7FFF) >= 0x7F80) continue;
        /* Tie to even; one float either side of it. */
        uint32_t tie = code << 16 | 0x8000;
        CHECK_INT(hl_f32_to_bf16(float_of(tie)), code + (code & 1));
        CHECK_INT(hl_f32_to_bf16(float_of(tie - 1)), code);
        CHECK_INT(hl_f32_to_bf16(float_of(tie + 1)), code + 1);
    }
    check_case("%s", "");
    CHECK(isnan(hl_bf16_to_f32(hl_f32_to_bf16(float_of(0x7F800001)))));
    CHECK(isnan(hl_bf16_to_f32(hl_f32_to_bf16(float_of(0xFFFFFFFF)))));
}

int main(void)
{
    test_f16_codes();
    test_f16_rounding();
    test_bf16();
    return CHECK_DONE();
}
