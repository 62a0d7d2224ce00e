/* Decoding: the choice of a decoder. */
#include "data/decode.h"

hl_status hl_image_header_read(const hl_encoded *file, hl_image_header *out_header)
{
    *out_header = (hl_image_header){.format = hl_image_sniff(file->data, file->bytes)};
    if (out_header->format != HL_IMAGE_JPEG) return HL_OK;
    hl_jpeg_header *jpeg = &out_header->jpeg;
    HL_TRY(hl_jpeg_header_read(file->data, file->bytes, jpeg));
    bool is_swapped = jpeg->orientation >= 5;
    out_header->height = is_swapped ? jpeg->width : jpeg->height;
    out_header->width = is_swapped ? jpeg->height : jpeg->width;
    return HL_OK;
}

static hl_status fail_reader(const hl_image_decoder *decoder, const hl_image_header *header)
{
    const char *why = hl_jpeg_why_not(decoder->jpeg);
    if (header->format == HL_IMAGE_JPEG && why)
        return hl_status_set(HL_ERROR_CONFIG,
                             "JPEG: TurboJPEG or another reader must be there, "
                             "got '%s'",
                             why);
    return hl_status_set(HL_ERROR_CONFIG, "image: a reader must be there for format %s, got none",
                         hl_image_format_name(header->format));
}

hl_status hl_image_decode(const hl_image_decoder *decoder, const char *name, const hl_encoded *file,
                          const hl_image_header *header, const hl_image_request *request,
                          hl_image *image)
{
    if (header->format == HL_IMAGE_JPEG && !hl_jpeg_why_not(decoder->jpeg)) {
        bool is_sure;
        HL_TRY(hl_jpeg_decode(decoder->jpeg, file->data, file->bytes, &header->jpeg, request, image,
                              &is_sure));
        if (is_sure) return HL_OK;
    }
    if (!decoder->reader.read) return fail_reader(decoder, header);
    HL_TRY(decoder->reader.read(decoder->reader.context, name, file, request, image));
    if (image->channels == request->channels)
        return hl_image_check_size(image->height, image->width);
    return hl_status_set(HL_ERROR_DATA, "image: its reader must give %d channels, got %d",
                         request->channels, image->channels);
}
