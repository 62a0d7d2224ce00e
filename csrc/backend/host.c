#include "backend/host.h"

#include <string.h>

#include "base/alloc.h"

hl_status hl_host_check_index(const hl_backend *backend, int index)
{
    if (index == 0) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE, "%s: there is one device, 0, got %d", backend->name,
                         index);
}

void hl_host_destroy(hl_device *device)
{
    hl_free(device);
}

hl_status hl_host_alloc(hl_device *device, size_t bytes, void **out_ptr)
{
    (void)device;
    return hl_alloc(bytes, out_ptr);
}

void hl_host_free(hl_device *device, void *ptr)
{
    (void)device;
    hl_free(ptr);
}

hl_status hl_host_copy(hl_device *device, void *dst, const void *src, size_t bytes, hl_copy kind,
                       hl_stream *stream)
{
    (void)device, (void)kind, (void)stream;
    if (bytes > 0) memmove(dst, src, bytes);
    return HL_OK;
}

hl_status hl_host_fill_zero(hl_device *device, void *dst, size_t bytes, hl_stream *stream)
{
    (void)device, (void)stream;
    if (bytes > 0) memset(dst, 0, bytes);
    return HL_OK;
}

hl_status hl_host_synchronize(hl_device *device, hl_stream *stream)
{
    (void)device, (void)stream;
    return HL_OK;
}
