/* cuDNN: its table from the library, its handle, its descriptors. */
#include "kernels/cuda/cudnn.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/gpus.h"
#include "kernels/cuda/internal.h"

static const char *fill_table(hl_cudnn *dnn)
{
    void *symbol;
#define HL_CUDNN_CALL(result, name, params)                                                        \
    symbol = hl_os_library_symbol(dnn->library, #name);                                            \
    memcpy(&dnn->call.name, &symbol, sizeof symbol);                                               \
    if (!symbol) return #name;
#include "kernels/cuda/cudnn.def"
    return NULL;
}

static bool is_out_of_memory(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

hl_status hl_cudnn_check(const hl_cudnn *dnn, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS) return HL_OK;
    const char *name = dnn->call.cudnnGetErrorString(status);
    hl_status code = is_out_of_memory(status) ? HL_ERROR_MEMORY : HL_ERROR_DEVICE;
    return hl_status_set(code, "cuDNN: %s must succeed, got %s", what, name ? name : "?");
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Descriptions came with 9.8. */
enum { OLDEST_DESCRIBED = 90800 };

static cudnnStatus_t start_described(hl_cudnn *dnn, const char *description)
{
    hl_cudnn_descs descs = {.dnn = dnn};
    cudnnBackendDescriptor_t desc = hl_cudnn_desc_make(&descs, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    hl_cudnn_desc_set(&descs, desc, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                      (int64_t)strlen(description), description);
    hl_cudnn_desc_finalize(&descs, desc, "a description");
    if (descs.status == CUDNN_STATUS_SUCCESS) {
        hl_cudnn_desc_keep(&descs, desc);
        dnn->description = desc;
    }
    hl_cudnn_descs_drop(&descs, 0);
    return descs.status;
}

/* cuDNN is linked against a driver, which plans ask for nothing that matters. */
static bool has_driver(hl_cudnn *dnn)
{
    char why_not[HL_LIBRARY_WHY_BYTES];
    hl_os_library driver;
    if (hl_os_library_open(hl_library_cuda.sonames[0], true, &driver, why_not, sizeof why_not)) {
        hl_os_library_close(&driver);
        return true;
    }
    snprintf(dnn->why_not, sizeof dnn->why_not,
             "cuDNN plans for a description where there is a driver, got no %s",
             hl_library_cuda.sonames[0]);
    return false;
}

/* Fills the table and makes the handle, or says why not. Memory that is short today is an error: it
 * may be there tomorrow. */
static hl_status open_library(hl_cuda_device *device, const char *description, hl_cudnn *dnn)
{
    hl_library_found found;
    hl_library_search search = {device->library_roots, device->driver.version};
    if (description && !has_driver(dnn)) return HL_OK;
    hl_library_find(&hl_library_cudnn, &search, &found);
    dnn->library = found.library;
    dnn->version = found.version;
    if (!found.library.handle) {
        hl_text_copy(dnn->why_not, sizeof dnn->why_not, found.why_not);
        return HL_OK;
    }
    const char *missing = fill_table(dnn);
    if (missing || (description && found.version < OLDEST_DESCRIBED)) {
        snprintf(dnn->why_not, sizeof dnn->why_not, "cuDNN %s lacks %s", found.version_text,
                 missing ? missing : "descriptions of GPUs, which came with 9.8");
        return HL_OK;
    }
    cudnnStatus_t status =
        description ? start_described(dnn, description) : dnn->call.cudnnCreate(&dnn->handle);
    if (is_out_of_memory(status)) return hl_cudnn_check(dnn, status, "its start");
    if (status == CUDNN_STATUS_SUCCESS) return HL_OK;
    dnn->handle = NULL;
    snprintf(dnn->why_not, sizeof dnn->why_not, "cuDNN %s does not start: %s", found.version_text,
             dnn->call.cudnnGetErrorString(status));
    return HL_OK;
}

static hl_status open_once(hl_cuda_device *device, const char *description)
{
    hl_cudnn *dnn;
    if (device->cudnn) return HL_OK;
    HL_TRY(hl_alloc_zero(sizeof *dnn, (void **)&dnn));
    hl_status status = open_library(device, description, dnn);
    dnn->refusals = (hl_refusals){.library = "cuDNN", .kind = "conv", .version = dnn->version};
    if (status == HL_OK)
        device->cudnn = dnn;
    else
        hl_cudnn_destroy(dnn);
    return status;
}

static hl_status open_device(hl_device *base, const char *description, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    if (!description && device->gpu) description = device->gpu->text;
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->library_lock);
    hl_status status = open_once(device, description);
    hl_mutex_unlock(&device->library_lock);
    hl_cuda_leave(base);
    HL_TRY(status);
    if (device->cudnn->handle || device->cudnn->description) return HL_OK;
    return hl_reason_set(out_why_not, "%s", device->cudnn->why_not);
}

hl_status hl_cudnn_get(hl_device *device, const hl_cudnn **out_dnn, hl_reason *out_why_not)
{
    *out_dnn = NULL;
    HL_TRY(open_device(device, NULL, out_why_not));
    *out_dnn = hl_cuda_of(device)->cudnn;
    return HL_OK;
}

hl_status hl_cudnn_describe(hl_device *device, const char *description, hl_reason *out_why_not)
{
    return open_device(device, description, out_why_not);
}

void hl_cudnn_stop(hl_cudnn *dnn)
{
    if (!dnn) return;
    if (dnn->stop_layers) dnn->stop_layers(dnn);
    while (dnn->n_kept) dnn->call.cudnnBackendDestroyDescriptor(dnn->kept[--dnn->n_kept]);
    if (dnn->handle) dnn->call.cudnnDestroy(dnn->handle);
    if (dnn->description) dnn->call.cudnnBackendDestroyDescriptor(dnn->description);
    dnn->handle = NULL;
    dnn->description = NULL;
}

void hl_cudnn_destroy(hl_cudnn *dnn)
{
    if (!dnn) return;
    hl_os_library_close(&dnn->library);
    hl_refusals_deinit(&dnn->refusals);
    for (int64_t i = 0; i < dnn->n_answers; i++) hl_free(dnn->answers[i]);
    hl_free(dnn->answers);
    for (int64_t i = 0; i < dnn->n_layers; i++) hl_free(dnn->layers[i]);
    hl_free(dnn->layers);
    hl_free(dnn->kept);
    hl_free(dnn);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

void hl_cudnn_note(hl_cudnn_descs *descs, cudnnStatus_t status, const char *what)
{
    if (descs->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    descs->status = status;
    descs->what = what;
}

cudnnBackendDescriptor_t hl_cudnn_desc_make(hl_cudnn_descs *descs,
                                            cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t desc = NULL;
    if (descs->status != CUDNN_STATUS_SUCCESS) return NULL;
    if (descs->n == HL_CUDNN_DESCS) {
        hl_cudnn_note(descs, CUDNN_STATUS_NOT_SUPPORTED, "so many descriptors");
        return NULL;
    }
    hl_cudnn_note(descs, descs->dnn->call.cudnnBackendCreateDescriptor(type, &desc),
                  "a descriptor");
    if (descs->status != CUDNN_STATUS_SUCCESS) return NULL;
    descs->made[descs->n++] = desc;
    return desc;
}

void hl_cudnn_desc_set(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t n, const void *values)
{
    if (descs->status != CUDNN_STATUS_SUCCESS) return;
    hl_cudnn_note(descs, descs->dnn->call.cudnnBackendSetAttribute(desc, name, type, n, values),
                  "an attribute");
}

void hl_cudnn_desc_link(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                        cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    hl_cudnn_desc_set(descs, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

int64_t hl_cudnn_desc_get(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t n_asked, void *out_values)
{
    int64_t n = 0;
    if (descs->status != CUDNN_STATUS_SUCCESS) return 0;
    hl_cudnn_note(
        descs, descs->dnn->call.cudnnBackendGetAttribute(desc, name, type, n_asked, &n, out_values),
        "reading an attribute");
    return descs->status == CUDNN_STATUS_SUCCESS ? n : 0;
}

void hl_cudnn_desc_finalize(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc, const char *what)
{
    if (descs->status != CUDNN_STATUS_SUCCESS) return;
    hl_cudnn_note(descs, descs->dnn->call.cudnnBackendFinalize(desc), what);
}

void hl_cudnn_desc_keep(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc)
{
    int n = 0;
    for (int i = 0; i < descs->n; i++)
        if (descs->made[i] != desc) descs->made[n++] = descs->made[i];
    descs->n = n;
}

void hl_cudnn_descs_drop(hl_cudnn_descs *descs, int n)
{
    while (descs->n > n) descs->dnn->call.cudnnBackendDestroyDescriptor(descs->made[--descs->n]);
}
