/* TrivialAugment and RandAugment: what is drawn. */
#include "data/auto.h"

#include <math.h>

typedef struct auto_range {
    double first, last; /* of the magnitudes, in equal steps; both 0: it has none */
    bool is_signed;     /* either sign, by a draw */
} auto_range;

static const auto_range trivial_ranges[HL_AUTO_COUNT] = {
    [HL_AUTO_SHEAR_X] = {0, 0.99, true},   [HL_AUTO_SHEAR_Y] = {0, 0.99, true},
    [HL_AUTO_TRANSLATE_X] = {0, 32, true}, [HL_AUTO_TRANSLATE_Y] = {0, 32, true},
    [HL_AUTO_ROTATE] = {0, 135, true},     [HL_AUTO_BRIGHTNESS] = {0, 0.99, true},
    [HL_AUTO_COLOR] = {0, 0.99, true},     [HL_AUTO_CONTRAST] = {0, 0.99, true},
    [HL_AUTO_SHARPNESS] = {0, 0.99, true}, [HL_AUTO_POSTERIZE] = {8, 2, false},
    [HL_AUTO_SOLARIZE] = {1, 0, false},
};

static const auto_range rand_ranges[HL_AUTO_COUNT] = {
    [HL_AUTO_SHEAR_X] = {0, 0.3, true},
    [HL_AUTO_SHEAR_Y] = {0, 0.3, true},
    [HL_AUTO_TRANSLATE_X] = {0, 150.0 / 331, true},
    [HL_AUTO_TRANSLATE_Y] = {0, 150.0 / 331, true},
    [HL_AUTO_ROTATE] = {0, 30, true},
    [HL_AUTO_BRIGHTNESS] = {0, 0.9, true},
    [HL_AUTO_COLOR] = {0, 0.9, true},
    [HL_AUTO_CONTRAST] = {0, 0.9, true},
    [HL_AUTO_SHARPNESS] = {0, 0.9, true},
    [HL_AUTO_POSTERIZE] = {8, 4, false},
    [HL_AUTO_SOLARIZE] = {1, 0, false},
};

static hl_auto_draw draw(const auto_range ranges[HL_AUTO_COUNT], int64_t bin, int64_t n,
                         hl_draws *draws)
{
    hl_auto_op op = (hl_auto_op)hl_draws_below(draws, HL_AUTO_COUNT);
    bool is_negative = hl_draws_below(draws, 2) == 1;
    const auto_range *range = ranges + op;
    double magnitude = range->first + (range->last - range->first) * (double)bin / (double)(n - 1);
    if (op == HL_AUTO_POSTERIZE) magnitude = rint(magnitude);
    return (hl_auto_draw){op, range->is_signed && is_negative ? -magnitude : magnitude};
}

hl_auto_draw hl_auto_trivial(int64_t n, hl_draws *draws)
{
    return draw(trivial_ranges, hl_draws_below(draws, n), n, draws);
}

hl_auto_draw hl_auto_rand(int64_t bin, int64_t n, hl_draws *draws)
{
    return draw(rand_ranges, bin, n, draws);
}
