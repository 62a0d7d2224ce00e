/* Matrix products on the CPU against the reference: every combination of transposition, batch
 * broadcast and bias, packed weights, and shapes around the tile sizes. With AVX-512 a second time
 * in bfloat16, where the processor has it: sums are float32, so the same bounds hold for operands
 * that were rounded first. */
#include "base/os.h"
#include "tests/c/cpu_case.h"

static bool is_bf16; /* operands are bfloat16 */

static hl_type type_of(hl_shape shape)
{
    return (hl_type){HL_DTYPE_F32, shape};
}

static hl_shape matrix_of(int batch_rank, const int64_t *batch, int64_t rows, int64_t cols)
{
    hl_shape shape = hl_shape_make(batch_rank, batch);
    shape.dim[shape.rank++] = rows;
    shape.dim[shape.rank++] = cols;
    return shape;
}

static void check_matmul(const hl_shape *batch_a, const hl_shape *batch_b, const hl_shape *batch,
                         int64_t M, int64_t K, int64_t N, int flags)
{
    op_case c = {.op = HL_OP_MATMUL, .n_in = flags & 4 ? 3 : 2, .n_out = 1};
    c.attrs.matmul.trans_a = flags & 1, c.attrs.matmul.trans_b = flags >> 1 & 1;
    c.in[0] = type_of(matrix_of(batch_a->rank, batch_a->dim, flags & 1 ? K : M, flags & 1 ? M : K));
    c.in[1] = type_of(matrix_of(batch_b->rank, batch_b->dim, flags & 2 ? N : K, flags & 2 ? K : N));
    c.in[2] = type_of(hl_shape_1d(N));
    c.out[0] = type_of(matrix_of(batch->rank, batch->dim, M, N));
    if (is_bf16) c.in[0].dtype = c.in[1].dtype = HL_DTYPE_BF16, c.attrs.matmul.float32_out = true;
    for (int i = 0; i < c.n_in; i++) case_fill(&c, i, -1, 1);
    /* gamma(K) eps sum|ab|, with |ab| <= 1; for long sums six standard deviations of K roundings,
     * each of a partial sum of k terms, whose size is sqrt(k) / 3: 6 eps K / 7.3. */
    c.tolerance = 6e-8 * (double)(K + 2) * (double)(K + 2) / 4 + 1e-6;
    if (c.tolerance > 5e-8 * (double)K + 1e-6) c.tolerance = 5e-8 * (double)K + 1e-6;
    check_case("matmul %lld x %lld x %lld batch rank %d %d flags %d", (long long)M, (long long)K,
               (long long)N, batch_a->rank, batch_b->rank, flags);
    case_check(&c);
}

static void test_matmul(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 4},    {13, 17, 33}, {64, 64, 32},
                                       {70, 5, 10}, {5, 130, 96}, {200, 33, 1}, {0, 4, 5},
                                       {4, 0, 5},   {4, 5, 0},    {1, 300, 65}, {150, 20, 70}};
    static const struct {
        int rank_a, rank_b, rank;
        int64_t a[2], b[2], out[2];
    } batches[] = {{0, 0, 0, {0}, {0}, {0}},         {1, 0, 1, {3}, {0}, {3}},
                   {0, 1, 1, {0}, {3}, {3}},         {1, 1, 1, {2}, {2}, {2}},
                   {1, 1, 1, {20}, {20}, {20}},      {2, 1, 2, {2, 3}, {3}, {2, 3}},
                   {2, 2, 2, {4, 1}, {1, 5}, {4, 5}}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
            for (int flags = 0; flags < 8; flags++) {
                hl_shape a = hl_shape_make(batches[b].rank_a, batches[b].a);
                hl_shape other = hl_shape_make(batches[b].rank_b, batches[b].b);
                hl_shape out = hl_shape_make(batches[b].rank, batches[b].out);
                check_matmul(&a, &other, &out, sizes[s][0], sizes[s][1], sizes[s][2], flags);
            }
        }
    }
}

/* More of B than is packed at a time, in the rows of one matrix and of two. */
static void test_groups(void)
{
    hl_shape none = hl_shape_scalar(), two = hl_shape_1d(2);
    for (int flags = 0; flags < 8; flags++) {
        check_matmul(&none, &none, &none, 70, 1100, 140, flags);
        check_matmul(&two, &two, &two, 33, 1101, 150, flags);
    }
}

/* The weight gradient with a long reduction, where K is split. */
static void test_weight_gradient(void)
{
    hl_shape none = hl_shape_scalar();
    check_matmul(&none, &none, &none, 10, 5000, 7, 1);
    check_matmul(&none, &none, &none, 64, 3000, 128, 1);
    check_matmul(&none, &none, &none, 3, 10000, 64, 1);
}

/* relu of a result of this shape. */
static hl_program make_relu(const hl_type *type)
{
    hl_program program = {.shape = type->shape, .n_in = 1, .n_out = 1, .n_code = 2, .n_regs = 2};
    hl_program_splits_set(&program, NULL, 0);
    program.code[0] = (hl_pw_instr){.op = HL_PW_LOAD};
    program.code[1] = (hl_pw_instr){.op = HL_PW_RELU, .dst = 1};
    program.out[0].reg = 1;
    return program;
}

static void run_kernel(hl_op op, const hl_attrs *attrs, bool has_relu, const hl_type *in, int n_in,
                       const hl_type *out, void **args, int64_t grains)
{
    hl_program relu = make_relu(out);
    op_case c = {.op = op, .attrs = *attrs, .n_in = n_in, .n_out = 1};
    if (has_relu) c.program = &relu;
    memcpy(c.in, in, (size_t)n_in * sizeof *in);
    c.out[0] = *out;
    case_graph g;
    case_build(&c, false, &g);
    const hl_kernel *kernel = case_cpu->ops->kernels(case_cpu, op)[0];
    hl_kernel_req req = {0};
    hl_reason reason;
    CHECK_OK(kernel->query(case_cpu, &g.graph, 0, &req, &reason));
    hl_kernel_state state = {.kernel = kernel};
    CHECK_OK(kernel->prepare(case_cpu, &g.graph, 0, &state));
    unsigned char *scratch = case_alloc(req.thread_scratch_bytes);
    hl_launch launch = {.thread_scratch = scratch};
    case_launch(kernel, &state, &req, args, &launch, grains, NULL);
    case_free(scratch, req.thread_scratch_bytes);
    hl_free(state.impl);
}

/* pack then packed, against double; the packed bytes are opaque, so there is no reference. */
static void check_packed(int64_t M, int64_t K, int64_t N, int flags)
{
    hl_attrs pack_attrs = {.matmul_pack = {flags & 1}};
    hl_attrs packed_attrs = {.matmul_packed = {N}};
    int64_t elements = hl_round_up(K, 2) * hl_round_up(N, 32);
    hl_type a = type_of(hl_shape_2d(M, K)), bias = type_of(hl_shape_1d(N));
    hl_type b = type_of(flags & 1 ? hl_shape_2d(N, K) : hl_shape_2d(K, N));
    hl_type packed = type_of(hl_shape_1d(elements)), c = type_of(hl_shape_2d(M, N));
    float *data[5];
    const hl_type *types[5] = {&a, &b, &bias, &packed, &c};
    for (int i = 0; i < 5; i++) {
        data[i] = (float *)(void *)case_alloc(case_bytes(types[i]));
        for (int64_t e = 0; i < 3 && e < hl_shape_numel(&types[i]->shape); e++) {
            data[i][e] = (float)dice_draw();
        }
    }
    check_case("packed %lld x %lld x %lld flags %d", (long long)M, (long long)K, (long long)N,
               flags);
    run_kernel(HL_OP_MATMUL_PACK, &pack_attrs, false, &b, 1, &packed, (void *[]){data[1], data[3]},
               2);
    hl_type in[3] = {a, packed, bias};
    bool has_bias = (flags & 4) != 0;
    void *args[4] = {data[0], data[3], has_bias ? data[2] : data[4], data[4]};
    run_kernel(HL_OP_MATMUL_PACKED, &packed_attrs, flags & 2, in, has_bias ? 3 : 2, &c, args, 37);
    for (int64_t i = 0; i < M * N; i++) {
        double want = has_bias ? (double)data[2][i % N] : 0;
        for (int64_t k = 0; k < K; k++) {
            float other = data[1][flags & 1 ? i % N * K + k : k * N + i % N];
            want += (double)data[0][i / N * K + k] * (double)other;
        }
        if (flags & 2 && want < 0) want = 0;
        CHECK(fabs((double)data[4][i] - want) < 1e-5 * (1 + (double)K / 100));
    }
    for (int i = 0; i < 5; i++) case_free((unsigned char *)data[i], case_bytes(types[i]));
}

/* As check_packed; b is float32 with flag 8, rounded by the packing, else bfloat16. */
static void check_packed_bf16(int64_t M, int64_t K, int64_t N, int flags)
{
    hl_attrs pack_attrs = {.matmul_pack = {flags & 1, HL_DTYPE_BF16}};
    hl_attrs packed_attrs = {.matmul_packed = {N, true}};
    int64_t elements = hl_round_up(K, 2) * hl_round_up(N, 32);
    hl_type a = {HL_DTYPE_BF16, hl_shape_2d(M, K)}, bias = type_of(hl_shape_1d(N));
    hl_type b = {flags & 8 ? HL_DTYPE_F32 : HL_DTYPE_BF16,
                 flags & 1 ? hl_shape_2d(N, K) : hl_shape_2d(K, N)};
    hl_type packed = {HL_DTYPE_BF16, hl_shape_1d(elements)}, c = type_of(hl_shape_2d(M, N));
    unsigned char *data[5];
    const hl_type *types[5] = {&a, &b, &bias, &packed, &c};
    for (int i = 0; i < 5; i++) {
        data[i] = case_alloc(case_bytes(types[i]));
        for (int64_t e = 0; i < 3 && e < hl_shape_numel(&types[i]->shape); e++)
            element_store(data[i], types[i]->dtype, e, dice_draw());
    }
    /* A row's last pair must not touch the row behind it: zero times NaN is NaN. */
    if (M > 1 && K > 0) element_store(data[0], HL_DTYPE_BF16, M / 2 * K, NAN);
    check_case("bf16 packed %lld x %lld x %lld flags %d", (long long)M, (long long)K, (long long)N,
               flags);
    run_kernel(HL_OP_MATMUL_PACK, &pack_attrs, false, &b, 1, &packed, (void *[]){data[1], data[3]},
               2);
    hl_type in[3] = {a, packed, bias};
    bool has_bias = (flags & 4) != 0;
    void *args[4] = {data[0], data[3], has_bias ? data[2] : data[4], data[4]};
    run_kernel(HL_OP_MATMUL_PACKED, &packed_attrs, flags & 2, in, has_bias ? 3 : 2, &c, args, 37);
    for (int64_t i = 0; i < M * N; i++) {
        double want = has_bias ? element_load(data[2], HL_DTYPE_F32, i % N) : 0;
        for (int64_t k = 0; k < K; k++) {
            int64_t at = flags & 1 ? i % N * K + k : k * N + i % N;
            double other = element_load(data[1], b.dtype, at);
            if (flags & 8) other = (double)hl_bf16_to_f32(hl_f32_to_bf16((float)other));
            want += element_load(data[0], HL_DTYPE_BF16, i / N * K + k) * other;
        }
        if (flags & 2 && want < 0) want = 0;
        double got = element_load(data[4], HL_DTYPE_F32, i);
        CHECK(isnan(want) ? isnan(got) : fabs(got - want) < 1e-5 * (1 + (double)K / 100));
    }
    for (int i = 0; i < 5; i++) case_free(data[i], case_bytes(types[i]));
}

/* In a set of instructions that has them. */
static void test_bf16(const char *isa, bool has_isa)
{
    hl_device_options options = {.n_threads = 1, .isa = isa};
    if (strcmp(HL_CPU_TEXT(HL_ISA), "avx512") != 0) return;
    if (!has_isa) {
        CHECK_SKIP("the processor has no products of bfloat16 of this kind");
        return;
    }
    case_cpu->ops->destroy(case_cpu);
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &case_cpu));
    is_bf16 = true;
    test_matmul();
    test_groups();
    test_weight_gradient();
    for (int flags = 0; flags < 16; flags++) {
        check_packed_bf16(100, 64, 128, flags);
        check_packed_bf16(33, 7, 10, flags);
        check_packed_bf16(1, 200, 33, flags);
        check_packed_bf16(3, 0, 5, flags);
        check_packed_bf16(0, 3, 5, flags);
        check_packed_bf16(29, 1, 130, flags);
        check_packed_bf16(20, 2049, 65, flags);  /* blocks of K, the last one odd */
        check_packed_bf16(20, 1024, 140, flags); /* rows that share cache sets: A is copied */
    }
}

int main(void)
{
    case_open();
    test_matmul();
    test_groups();
    test_weight_gradient();
    for (int flags = 0; flags < 8; flags++) {
        check_packed(100, 64, 128, flags);
        check_packed(33, 7, 10, flags);
        check_packed(1, 200, 33, flags);
        check_packed(3, 0, 5, flags);
        check_packed(0, 3, 5, flags);
        check_packed(64, 64, 10, flags);
    }
    hl_os_cpu machine;
    hl_os_cpu_read(&machine);
    test_bf16("avx512bf16", machine.avx512_bf16);
    test_bf16("amx", machine.amx);
    case_close();
    return CHECK_DONE();
}
