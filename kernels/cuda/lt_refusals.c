#include "kernels/cuda/lt_refusals.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/internal.h"

struct hl_lt_refused {
    char text[HL_LT_TEXT]; /* of a product, or the name of an activation */
    hl_lt_refusal refusal;
};

typedef struct refusal_row {
    const char *why;  /* "cuBLASLt: ..." of a product */
    const char *line; /* in the autotune cache; NULL: it is not kept there */
    hl_log_level level;
    bool of_activation;
} refusal_row;
static const refusal_row rows[HL_LT_REFUSALS] = {
    [HL_LT_FAILS] = {"no algorithm runs", NULL, HL_LOG_WARNING, false},
    [HL_LT_VARIES] = {"no algorithm gives the same bits twice", NULL, HL_LOG_WARNING, false},
    [HL_LT_DROPS_NAN] = {"it makes a number of NaN", "drops NaN", HL_LOG_INFO, true},
    [HL_LT_COSTS_MORE] = {"it is slower than a product and a kernel", "apart", HL_LOG_INFO, false},
};

void hl_lt_key_write(const hl_cublaslt *lt, const char *product, char *out_key)
{
    snprintf(out_key, HL_CUDA_KEY_BYTES, "cuBLASLt %d; %s", lt->version, product);
}

/* False: such a refusal is not of this product. */
static bool write_text(const hl_lt_product *product, hl_lt_refusal refusal, char *out_text)
{
    if (rows[refusal].of_activation && !product->activation) return false;
    if (refusal == HL_LT_COSTS_MORE && !product->apart_bytes) return false;
    if (rows[refusal].of_activation)
        hl_text_copy(out_text, HL_LT_TEXT, product->activation);
    else
        hl_lt_product_format(product, out_text);
    return true;
}

/* Under the device's library lock, as what follows. */
static bool is_refused(const hl_cublaslt *lt, const char *text, hl_lt_refusal refusal)
{
    for (int64_t i = 0; i < lt->n_refused; i++)
        if (lt->refused[i].refusal == refusal && strcmp(lt->refused[i].text, text) == 0)
            return true;
    return false;
}

/* The first refusal of a kind is said to the user, for all of them. */
static hl_status add_refusal(hl_cuda_device *device, const char *text, hl_lt_refusal refusal)
{
    hl_cublaslt *lt = device->cublaslt;
    const refusal_row *row = &rows[refusal];
    bool is_first = true;
    if (is_refused(lt, text, refusal)) return HL_OK;
    for (int64_t i = 0; i < lt->n_refused; i++) is_first &= lt->refused[i].refusal != refusal;
    HL_TRY(hl_alloc_grow((void **)&lt->refused, &lt->cap_refused, lt->n_refused + 1,
                         sizeof *lt->refused));
    struct hl_lt_refused *refused = &lt->refused[lt->n_refused++];
    refused->refusal = refusal;
    hl_text_copy(refused->text, sizeof refused->text, text);
    __atomic_add_fetch(&device->base.n_refusals, 1, __ATOMIC_RELEASE);
    hl_log(is_first ? row->level : HL_LOG_DEBUG,
           "cuBLASLt %d: %s: %s; hotloop's own kernels compute it, and others of which that is so",
           lt->version, text, row->why);
    return HL_OK;
}

static hl_status add_locked(hl_device *base, const char *text, hl_lt_refusal refusal)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_mutex_lock(&device->library_lock);
    hl_status status = add_refusal(device, text, refusal);
    hl_mutex_unlock(&device->library_lock);
    return status;
}

hl_status hl_lt_refuse(hl_device *device, const hl_lt_product *product, hl_lt_refusal refusal)
{
    char text[HL_LT_TEXT], key[HL_CUDA_KEY_BYTES];
    if (!write_text(product, refusal, text))
        return hl_status_set(HL_ERROR_INTERNAL,
                             "cuBLASLt: a product is refused for what it is not");
    HL_TRY(add_locked(device, text, refusal));
    hl_lt_key_write(hl_cuda_of(device)->cublaslt, text, key);
    if (rows[refusal].line) hl_cuda_autotune_keep(device, "matmul", key, rows[refusal].line);
    return hl_status_set(HL_ERROR_CONFIG, "cuBLASLt: %s: %s", text, rows[refusal].why);
}

hl_status hl_lt_refusals_recall(hl_device *device, const hl_lt_product *product)
{
    char text[HL_LT_TEXT], key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES];
    for (int r = HL_LT_FAILS; r < HL_LT_REFUSALS; r++) {
        if (!rows[r].line || !write_text(product, (hl_lt_refusal)r, text)) continue;
        hl_lt_key_write(hl_cuda_of(device)->cublaslt, text, key);
        if (hl_cuda_autotune_find(device, "matmul", key, line) && strcmp(line, rows[r].line) == 0)
            HL_TRY(add_locked(device, text, (hl_lt_refusal)r));
    }
    return HL_OK;
}

hl_status hl_lt_refusals_check(hl_device *base, const hl_lt_product *product, bool deterministic,
                               bool benchmark, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    const bool counts[HL_LT_REFUSALS] = {[HL_LT_FAILS] = true,
                                         [HL_LT_VARIES] = deterministic,
                                         [HL_LT_DROPS_NAN] = true,
                                         [HL_LT_COSTS_MORE] = benchmark};
    char text[HL_LT_TEXT];
    hl_status status = HL_OK;
    hl_mutex_lock(&device->library_lock);
    for (int r = HL_LT_FAILS; r < HL_LT_REFUSALS && status == HL_OK; r++)
        if (counts[r] && write_text(product, (hl_lt_refusal)r, text) &&
            is_refused(device->cublaslt, text, (hl_lt_refusal)r))
            status = hl_reason_set(out_why_not, "cuBLASLt: %s", rows[r].why);
    hl_mutex_unlock(&device->library_lock);
    return status;
}
