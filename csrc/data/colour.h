/* Colours of an image in planes: what Pillow's ImageEnhance, ImageOps and torchvision's functions
 * of the same names do, on 8 bits and in place.
 *
 * Two and four channels are a grey and a colour image with an alpha, which keeps its values. A grey
 * image has no saturation, hue nor colours to lose: it stays as it is there. */
#ifndef HL_DATA_COLOUR_H
#define HL_DATA_COLOUR_H

#include "data/draws.h"
#include "data/resample.h"

typedef struct hl_planes {
    uint8_t *data; /* (channels, height, width) */
    int64_t height, width;
    int32_t channels; /* 1 to HL_IMAGE_CHANNELS_MAX */
} hl_planes;

/* A factor of 1 changes nothing, 0 gives black, the mean grey, the image's grey, its blur. */
void hl_colour_brightness(const hl_planes *planes, double factor);
void hl_colour_contrast(const hl_planes *planes, double factor);
void hl_colour_saturation(const hl_planes *planes, double factor);
hl_status hl_colour_sharpness(const hl_planes *planes, double factor, hl_scratch *scratch);
/* Turns by so much of the colour circle, -0.5 to 0.5. */
void hl_colour_hue(const hl_planes *planes, double turn);
void hl_colour_grey(const hl_planes *planes);
void hl_colour_autocontrast(const hl_planes *planes);
void hl_colour_equalize(const hl_planes *planes);
/* Keeps 0 to 8 bits. */
void hl_colour_posterize(const hl_planes *planes, int bits);
/* Inverts levels from the threshold on. */
void hl_colour_solarize(const hl_planes *planes, double threshold);
/* Odd sizes; the image is reflected at its edges. All channels, an alpha too. */
hl_status hl_colour_blur(const hl_planes *planes, int64_t across, int64_t down, double sigma,
                         hl_scratch *scratch);
/* mean and sigma in levels. */
void hl_colour_noise(const hl_planes *planes, double mean, double sigma, hl_draws *draws);
/* A rectangle gets a colour, an element for each channel, or with NULL random levels. */
void hl_colour_erase(const hl_planes *planes, int64_t top, int64_t left, int64_t height,
                     int64_t width, const uint8_t *levels, hl_draws *draws);

#endif
