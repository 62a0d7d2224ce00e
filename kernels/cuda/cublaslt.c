/* cuBLASLt: its table from the library, its handle. */
#include "kernels/cuda/cublaslt.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/internal.h"

static const char *fill_table(hl_cublaslt *lt)
{
    void *symbol;
#define HL_CUBLASLT_CALL(result, name, params)                                                     \
    symbol = hl_os_library_symbol(lt->library, #name);                                             \
    memcpy(&lt->call.name, &symbol, sizeof symbol);                                                \
    if (!symbol) return #name;
#include "kernels/cuda/cublaslt.def"
    return NULL;
}

hl_status hl_cublaslt_check(const hl_cublaslt *lt, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) return HL_OK;
    const char *name = lt->call.cublasLtGetStatusName(status);
    hl_status code = status == CUBLAS_STATUS_ALLOC_FAILED ? HL_ERROR_MEMORY : HL_ERROR_DEVICE;
    return hl_status_set(code, "cuBLASLt: %s must succeed, got %s", what, name ? name : "?");
}

/* Fills the table and makes the handle, or says why not. Memory that is short today is an error: it
 * may be there tomorrow. */
static hl_status open_library(hl_cuda_device *device, hl_cublaslt *lt)
{
    if (hl_cuda_device_gpu(&device->base)) {
        hl_text_copy(lt->why_not, sizeof lt->why_not,
                     "cuBLASLt chooses on the GPU, got a description");
        return HL_OK;
    }
    hl_library_found found;
    hl_library_search search = {device->library_roots, device->driver.version};
    hl_library_find(&hl_library_cublaslt, &search, &found);
    lt->library = found.library;
    lt->version = found.version;
    if (!found.library.handle) {
        hl_text_copy(lt->why_not, sizeof lt->why_not, found.why_not);
        return HL_OK;
    }
    const char *missing = fill_table(lt);
    if (missing) {
        snprintf(lt->why_not, sizeof lt->why_not, "cuBLASLt %s lacks %s", found.version_text,
                 missing);
        return HL_OK;
    }
    cublasLtHandle_t handle = NULL;
    cublasStatus_t status = lt->call.cublasLtCreate(&handle);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return hl_cublaslt_check(lt, status, "its start");
    if (status == CUBLAS_STATUS_SUCCESS)
        lt->handle = handle;
    else
        snprintf(lt->why_not, sizeof lt->why_not, "cuBLASLt %s does not start: %s",
                 found.version_text, lt->call.cublasLtGetStatusName(status));
    return HL_OK;
}

static hl_status open_once(hl_cuda_device *device)
{
    hl_cublaslt *lt;
    if (device->cublaslt) return HL_OK;
    HL_TRY(hl_alloc_zero(sizeof *lt, (void **)&lt));
    hl_status status = open_library(device, lt);
    lt->refusals = (hl_refusals){.library = "cuBLASLt", .kind = "matmul", .version = lt->version};
    if (status == HL_OK)
        device->cublaslt = lt;
    else
        hl_cublaslt_destroy(lt);
    return status;
}

hl_status hl_cublaslt_get(hl_device *base, const hl_cublaslt **out_lt, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    *out_lt = NULL;
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->library_lock);
    hl_status status = open_once(device);
    hl_mutex_unlock(&device->library_lock);
    hl_cuda_leave(base);
    HL_TRY(status);
    if (!device->cublaslt->handle)
        return hl_reason_set(out_why_not, "%s", device->cublaslt->why_not);
    *out_lt = device->cublaslt;
    return HL_OK;
}

void hl_cublaslt_stop(hl_cublaslt *lt)
{
    if (!lt || !lt->handle) return;
    lt->call.cublasLtDestroy(lt->handle);
    lt->handle = NULL;
}

void hl_cublaslt_destroy(hl_cublaslt *lt)
{
    if (!lt) return;
    hl_os_library_close(&lt->library);
    hl_free(lt->answers);
    hl_refusals_deinit(&lt->refusals);
    hl_free(lt);
}
