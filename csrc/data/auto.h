/* The operations of TrivialAugment (Mueller and Hutter, 2021) and RandAugment (Cubuk et al., 2020),
 * with torchvision's ranges: one operation in two lists of magnitudes. */
#ifndef HL_DATA_AUTO_H
#define HL_DATA_AUTO_H

#include "data/draws.h"

typedef enum hl_auto_op {
    HL_AUTO_IDENTITY,
    HL_AUTO_SHEAR_X,
    HL_AUTO_SHEAR_Y,
    HL_AUTO_TRANSLATE_X,
    HL_AUTO_TRANSLATE_Y,
    HL_AUTO_ROTATE,
    HL_AUTO_BRIGHTNESS,
    HL_AUTO_COLOR,
    HL_AUTO_CONTRAST,
    HL_AUTO_SHARPNESS,
    HL_AUTO_POSTERIZE,
    HL_AUTO_SOLARIZE,
    HL_AUTO_AUTOCONTRAST,
    HL_AUTO_EQUALIZE,
    HL_AUTO_COUNT
} hl_auto_op;

/* What was drawn. The magnitude is a tangent for shears; pixels for TrivialAugment's translations
 * and a share of the image for RandAugment's; degrees anticlockwise for rotations, what a factor is
 * beyond 1, bits, a share of white for solarize. */
typedef struct hl_auto_draw {
    hl_auto_op op;
    double magnitude;
} hl_auto_draw;

/* Any operation by any of n magnitudes; n >= 2. */
hl_auto_draw hl_auto_trivial(int64_t n, hl_draws *draws);
/* Any operation by magnitude number `bin` of n. */
hl_auto_draw hl_auto_rand(int64_t bin, int64_t n, hl_draws *draws);

#endif
