/* Host memory as a device's memory, for every device whose operands the processor itself reads:
 * entries of hl_device_ops (backend.h has their contract). All is done when a call returns, so
 * streams are ignored. */
#ifndef HL_BACKEND_HOST_H
#define HL_BACKEND_HOST_H

#include "backend/backend.h"

/* The machine is one device: HL_ERROR_DEVICE unless index is 0. */
hl_status hl_host_check_index(const hl_backend *backend, int index);
/* For a device that is one block from hl_alloc. */
void hl_host_destroy(HL_TAKE hl_device *device);
/* Uninitialised. */
hl_status hl_host_alloc(hl_device *device, size_t bytes, HL_GIVE void **out_ptr);
void hl_host_free(hl_device *device, HL_TAKE void *ptr);
/* dst and src may overlap. */
hl_status hl_host_copy(hl_device *device, void *dst, const void *src, size_t bytes, hl_copy kind,
                       hl_stream *stream);
hl_status hl_host_fill_zero(hl_device *device, void *dst, size_t bytes, hl_stream *stream);
hl_status hl_host_synchronize(hl_device *device, hl_stream *stream);

#endif
