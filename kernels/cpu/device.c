/* The CPU device: host memory, one thread pool, and per op the list of kernels of the chosen
 * instruction set followed by the portable ones.
 *
 * The set is chosen when the device is opened, by the caller, by HOTLOOP_CPU or by what the
 * machine has; results are the same bits for the same set, so pinning it pins them. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/host.h"
#include "base/os.h"
#include "base/threads.h"
#include "kernels/cpu/kernel.h"

typedef struct isa_entry {
    const char *name;
    hl_dtype reduced; /* what its products take in mixed precision; float32: nothing else */
    int64_t reduced_side;
    const hl_kernel *const *const *families; /* NULL-terminated list of lists */
} isa_entry;

#define LIST_OF(family, isa) hl_cpu_##family##_kernels_##isa,
/* The build says which sets it has. */
#ifdef HL_HAS_portable
static const hl_kernel *const *const families_portable[] = {HL_CPU_FAMILIES(LIST_OF, portable)
                                                                NULL};
#endif
#ifdef HL_HAS_avx2
static const hl_kernel *const *const families_avx2[] = {HL_CPU_FAMILIES(LIST_OF, avx2) NULL};
#endif
#ifdef HL_HAS_avx512
static const hl_kernel *const *const families_avx512[] = {HL_CPU_FAMILIES(LIST_OF, avx512) NULL};
/* clang-format off */
static const hl_kernel *const *const families_avx512bf16[] = {
    LIST_OF(matmul_bf16, avx512) LIST_OF(depthwise_bf16, avx512) LIST_OF(conv_bf16, avx512)
    LIST_OF(conv_weight_bf16, avx512) LIST_OF(recurrence_bf16, avx512)
    HL_CPU_FAMILIES(LIST_OF, avx512) NULL};
static const hl_kernel *const *const families_amx[] = {
    LIST_OF(matmul_amx, avx512) LIST_OF(depthwise_bf16, avx512) LIST_OF(conv_amx, avx512)
    LIST_OF(conv_weight_amx, avx512) LIST_OF(recurrence_amx, avx512)
    HL_CPU_FAMILIES(LIST_OF, avx512) NULL};
/* clang-format on */
#endif

/* The best first, and last portable, which every machine has. */
static const isa_entry isa_table[] = {
#ifdef HL_HAS_avx512
    {"amx", HL_DTYPE_BF16, 64, families_amx},
    {"avx512bf16", HL_DTYPE_BF16, 128, families_avx512bf16},
    {"avx512", HL_DTYPE_F32, 0, families_avx512},
#endif
#ifdef HL_HAS_avx2
    {"avx2", HL_DTYPE_F32, 0, families_avx2},
#endif
#ifdef HL_HAS_portable
    {"portable", HL_DTYPE_F32, 0, families_portable},
#endif
};
enum { N_ISA = sizeof isa_table / sizeof isa_table[0] };

typedef struct cpu_device {
    hl_device base;
    hl_pool *pool;
    const hl_kernel *const *list[HL_OP_COUNT]; /* into entries; NULL: no kernel */
    const hl_kernel **entries;
} cpu_device;

static void destroy_device(HL_TAKE hl_device *device)
{
    cpu_device *cpu = (cpu_device *)device;
    hl_pool_destroy(cpu->pool);
    hl_free(cpu->entries);
    hl_free(cpu);
}

static const hl_kernel *const *list_kernels(const hl_device *device, hl_op op)
{
    return ((const cpu_device *)device)->list[op];
}

static void run_parallel(hl_device *device, int64_t n_blocks,
                         void (*fn)(void *context, int64_t block, int thread), void *context)
{
    hl_pool_run(((cpu_device *)device)->pool, n_blocks, fn, context);
}

static const hl_device_ops cpu_ops = {
    .destroy = destroy_device,
    .memory_alloc = hl_host_alloc,
    .memory_free = hl_host_free,
    .copy = hl_host_copy,
    .fill_zero = hl_host_fill_zero,
    .synchronize = hl_host_synchronize,
    .kernels = list_kernels,
    .parallel = run_parallel,
};

static bool has_isa(const hl_os_cpu *cpu, const char *name)
{
    if (strcmp(name, "amx") == 0) return cpu->avx512_bf16 && cpu->amx;
    if (strcmp(name, "avx512bf16") == 0) return cpu->avx2 && cpu->avx512_bf16;
    if (strcmp(name, "avx512") == 0) return cpu->avx2 && cpu->avx512;
    if (strcmp(name, "avx2") == 0) return cpu->avx2;
    return true;
}

/* The entry of the wanted set, or of the best one when none is wanted. */
static hl_status choose_isa(const hl_os_cpu *cpu, const char *wanted, const isa_entry **out_isa)
{
    char names[64] = "";
    *out_isa = NULL;
    for (int i = 0; i < N_ISA; i++) {
        const char *name = isa_table[i].name;
        if (!has_isa(cpu, name)) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
        bool matches = !wanted || strcmp(name, wanted) == 0;
        if (matches && !*out_isa) *out_isa = &isa_table[i];
    }
    if (*out_isa) return HL_OK;
    if (!names[0])
        return hl_status_set(HL_ERROR_DEVICE,
                             "cpu: the processor must have an instruction set of this build, got "
                             "one without %s; build again without HL_SETS",
                             isa_table[N_ISA - 1].name);
    return hl_status_set(HL_ERROR_CONFIG,
                         "HOTLOOP_CPU: must be an instruction set of this machine (%s), got \"%s\"",
                         names, wanted);
}

/* Appends the kernels of one op; returns how many. */
static int64_t append_kernels(const isa_entry *isa, hl_op op, const hl_kernel **entries)
{
    int64_t n = 0;
    for (const hl_kernel *const *const *family = isa->families; *family; family++) {
        for (const hl_kernel *const *kernel = *family; *kernel; kernel++) {
            if ((*kernel)->op != op) continue;
            if (entries) entries[n] = *kernel;
            n++;
        }
    }
    return n;
}

static hl_status build_lists(cpu_device *cpu, const isa_entry *isa)
{
    const isa_entry *last = &isa_table[N_ISA - 1];
    int64_t n = 0;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        n += append_kernels(isa, (hl_op)op, NULL) + append_kernels(last, (hl_op)op, NULL) + 1;
    }
    HL_TRY(hl_alloc_zero((size_t)n * sizeof *cpu->entries, (void **)&cpu->entries));
    const hl_kernel **next = cpu->entries;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        int64_t n_op = append_kernels(isa, (hl_op)op, next);
        if (isa != last) n_op += append_kernels(last, (hl_op)op, next + n_op);
        cpu->list[op] = n_op > 0 ? next : NULL;
        next += n_op + 1;
    }
    return HL_OK;
}

static hl_status open_device(const hl_backend *backend, int index, const hl_device_options *options,
                             HL_GIVE hl_device **out_device)
{
    *out_device = NULL;
    HL_TRY(hl_host_check_index(backend, index));
    const char *wanted = options ? options->isa : NULL;
    if (!wanted) wanted = getenv("HOTLOOP_CPU");
    if (wanted && !wanted[0]) wanted = NULL;
    hl_os_cpu machine;
    hl_os_cpu_read(&machine);
    const isa_entry *isa;
    HL_TRY(choose_isa(&machine, wanted, &isa));
    cpu_device *cpu;
    HL_TRY(hl_alloc_zero(sizeof *cpu, (void **)&cpu));
    hl_status status;
    HL_GOTO(hl_pool_create(options ? options->n_threads : 0, &cpu->pool));
    HL_GOTO(build_lists(cpu, isa));
    int n_threads = hl_pool_threads(cpu->pool);
    cpu->base = (hl_device){.ops = &cpu_ops,
                            .backend = backend,
                            .n_threads = n_threads,
                            .float_type = HL_DTYPE_F32,
                            .reduced_dtype = isa->reduced,
                            .reduced_side = isa->reduced_side,
                            .fuses = true,
                            .packs = true,
                            .scales_columns = true,
                            .alignment = HL_ALIGN};
    snprintf(cpu->base.name, sizeof cpu->base.name, "%s, %d thread%s, %s", machine.name, n_threads,
             n_threads == 1 ? "" : "s", isa->name);
    *out_device = &cpu->base;
    cpu = NULL;
cleanup:
    if (cpu) destroy_device(&cpu->base);
    return status;
}

const hl_backend *hl_cpu_backend(void)
{
    static const hl_backend backend = {.name = "cpu", .device_open = open_device};
    return &backend;
}
