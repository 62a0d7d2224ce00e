/* The CUDA driver: its table from libcuda, its errors in words. */
#include "kernels/cuda/driver.h"

#include <stdio.h>
#include <string.h>

/* A function pointer from dlsym, which ISO C gives no other way. */
static bool read_symbol(hl_os_library library, const char *name, void *out_function, size_t bytes)
{
    void *symbol = hl_os_library_symbol(library, name);
    memcpy(out_function, &symbol, bytes);
    return symbol != NULL;
}

static const char *fill_table(hl_cuda_driver *driver)
{
#define HL_CUDA_CALL(name, suffix, since, params)                                                  \
    if (!read_symbol(driver->library, #name #suffix, &driver->name, sizeof driver->name))          \
        return #name #suffix;
#include "kernels/cuda/driver.def"
    return NULL;
}

hl_status hl_cuda_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                              bool *out_absent)
{
    *out_driver = (hl_cuda_driver){0};
    hl_library_found found;
    hl_library_find(&hl_library_cuda, search, &found);
    *out_absent = !found.library.handle;
    if (!found.library.handle)
        return hl_status_set(HL_ERROR_DEVICE, "cuda: needs an NVIDIA driver, got none (%s)",
                             found.why_not);
    out_driver->library = found.library;
    const char *missing = fill_table(out_driver);
    if (!missing) return HL_OK;
    hl_cuda_driver_close(out_driver);
    return hl_status_set(HL_ERROR_DEVICE,
                         "cuda: the NVIDIA driver must be 525 or newer (CUDA 12.0), got one "
                         "without %s in %s",
                         missing, found.path);
}

void hl_cuda_driver_close(hl_cuda_driver *driver)
{
    hl_os_library_close(&driver->library);
    *driver = (hl_cuda_driver){0};
}

void hl_cuda_error_text(const hl_cuda_driver *driver, CUresult error, char *out_text, size_t bytes)
{
    const char *name = NULL, *words = NULL;
    if (driver->cuGetErrorName(error, &name) != CUDA_SUCCESS || !name) name = "CUDA error";
    if (driver->cuGetErrorString(error, &words) != CUDA_SUCCESS || !words) words = "";
    snprintf(out_text, bytes, "%s %d%s%s%s", name, (int)error, *words ? " (" : "", words,
             *words ? ")" : "");
}

bool hl_cuda_error_loses(CUresult error)
{
    switch (error) {
    case CUDA_ERROR_INVALID_CONTEXT: /* another library has reset the GPU */
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
    }
}
