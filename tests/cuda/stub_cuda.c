/* A libcuda.so.1 for a machine without a driver, as far as cuDNN needs one to make plans for a GPU
 * that it is told of (CUDNN_BACKEND_DEVICEPROP): the library is linked against it, looks up what it
 * may launch later, and loads what it compiled. Nothing runs: handles are all the same dummy, and
 * what would need a GPU answers "not supported".
 *
 * A symbol that is missing here shows as "no engine" far from its cause, so the list is one that
 * the test holds against what cuDNN asks for: check_cudnn.c prints what was looked up in vain. */
#include <stddef.h>

enum { OK = 0, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_SUPPORTED = 801, VERSION = 13000 };

static int dummy;

/* Calls that give a handle, that do nothing, and that need a GPU. */
#define HANDLES(X)                                                                                 \
    X(cuLibraryLoadData)                                                                           \
    X(cuLibraryGetKernel)                                                                          \
    X(cuKernelGetFunction)                                                                         \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction) X(cuCtxGetCurrent) X(cuCtxPopCurrent) X(cuDevicePrimaryCtxRetain)
#define IDLE(X)                                                                                    \
    X(cuLibraryUnload)                                                                             \
    X(cuModuleUnload)                                                                              \
    X(cuKernelSetAttribute)                                                                        \
    X(cuFuncSetAttribute)                                                                          \
    X(cuCtxPushCurrent) X(cuCtxSetCurrent) X(cuDevicePrimaryCtxRelease)
#define REFUSED(X)                                                                                 \
    X(cuLaunchKernel)                                                                              \
    X(cuLaunchKernelEx)                                                                            \
    X(cuLaunchCooperativeKernel)                                                                   \
    X(cuLibraryLoadFromFile)                                                                       \
    X(cuLinkAddData)                                                                               \
    X(cuLinkComplete)                                                                              \
    X(cuLinkCreate)                                                                                \
    X(cuLinkDestroy)                                                                               \
    X(cuStreamGetCtx) X(cuStreamGetGreenCtx) X(cuTensorMapEncodeIm2col) X(cuTensorMapEncodeTiled)

#define HANDLE(name)                                                                               \
    int name(void **out_handle)                                                                    \
    {                                                                                              \
        *out_handle = &dummy;                                                                      \
        return OK;                                                                                 \
    }
#define NOTHING(name)                                                                              \
    int name(void)                                                                                 \
    {                                                                                              \
        return OK;                                                                                 \
    }
#define REFUSAL(name)                                                                              \
    int name(void)                                                                                 \
    {                                                                                              \
        return NOT_SUPPORTED;                                                                      \
    }
HANDLES(HANDLE)
IDLE(NOTHING)
REFUSED(REFUSAL)

/* The runtime that cuDNN carries starts a driver by tables of its own, which are nowhere described:
 * it is told that there is no GPU, and cuDNN does without it. */
int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}
int cuDriverGetVersion(int *out_version)
{
    *out_version = VERSION;
    return OK;
}
int cuDeviceGetCount(int *out_count)
{
    *out_count = 1;
    return OK;
}
int cuDeviceGet(int *out_device, int ordinal)
{
    *out_device = ordinal;
    return ordinal == 0 ? OK : INVALID_DEVICE;
}
int cuCtxGetDevice(int *out_device)
{
    *out_device = 0;
    return OK;
}
int cuCtxGetLimit(size_t *out_value, int limit)
{
    (void)limit;
    *out_value = 1024;
    return OK;
}
/* Of a kernel that was "loaded": as many threads as there may be in a block, some registers. */
int cuKernelGetAttribute(int *out_value, int attribute)
{
    *out_value = attribute == 0 ? 1024 : attribute == 4 ? 64 : 0;
    return OK;
}
int cuFuncGetAttribute(int *out_value, int attribute)
{
    return cuKernelGetAttribute(out_value, attribute);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out_n)
{
    *out_n = 1;
    return OK;
}
int cuOccupancyMaxPotentialClusterSize(int *out_n)
{
    *out_n = 8;
    return OK;
}

static int say(const char **out_text)
{
    *out_text = "a GPU that is not there";
    return OK;
}
int cuGetErrorString(int error, const char **out_text)
{
    (void)error;
    return say(out_text);
}
int cuGetErrorName(int error, const char **out_text)
{
    (void)error;
    return say(out_text);
}
