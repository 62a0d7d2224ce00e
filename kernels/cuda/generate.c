/* CUDA C++ of a pointwise program, for walk.h.
 *
 * Registers are local variables, and micro-ops are the functions that the interpreter calls
 * (micro.h), so both have the same bits. What is whole, or runs along the innermost dim, is moved
 * 16 bytes at a time where addresses allow it; other operands find their element by constants of
 * the shape. The number of elements, the outermost dim and the keys of random steps are no
 * constants: a tail of another size and the next dropout layer have the same source, which is
 * compiled once. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/pointwise.h"

/* ---- text ------------------------------------------------------------------------------------ */

/* The first error is kept. */
typedef struct source_text {
    hl_status status;
    char *data;
    int64_t n, capacity;
} source_text;

static void say(source_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(source_text *text, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (text->status != HL_OK) return;
    if (n < 0 || n >= (int)sizeof line) {
        text->status = hl_status_set(
            HL_ERROR_INTERNAL, "cuda: a generated line must fit %zu bytes, got %d", sizeof line, n);
        return;
    }
    text->status =
        hl_alloc_grow((void **)&text->data, &text->capacity, text->n + n + 1, sizeof *text->data);
    if (text->status != HL_OK) return;
    memcpy(text->data + text->n, line, (size_t)n + 1);
    text->n += n;
}

static const char *name_dtype(int32_t dtype)
{
    static const char *const names[] = {
#define X(code, name, bytes, kind) [code] = #code,
        HL_DTYPES(X)
#undef X
    };
    return names[dtype];
}

/* ---- operands -------------------------------------------------------------------------------- */

/* How the width of elements that a thread has finds an operand's. */
typedef enum operand_form {
    FORM_RUN,    /* neighbours in memory too */
    FORM_SPREAD, /* all the same one */
    FORM_EACH    /* one by one */
} operand_form;

/* An operand of one element is none of these: its program serves any number of elements. */
static bool is_moved_whole(const hl_cuda_pointwise *work, int in)
{
    return work->program.in[in].is_whole && work->walk.n != 1;
}

static operand_form find_form(const hl_cuda_pointwise *work, int in)
{
    const hl_cuda_layout *at = &work->program.in[in].at;
    if (is_moved_whole(work, in)) return FORM_RUN;
    if (at->rank < 2) return FORM_SPREAD; /* one element */
    if (at->dim[at->rank - 1] % work->walk.width) return FORM_EACH;
    return at->stride[at->rank - 1] ? FORM_RUN : FORM_SPREAD;
}

/* A function from_<in>: where element i of the iteration lies. */
static void say_place(source_text *text, const hl_cuda_pointwise *work, int in)
{
    const hl_cuda_layout *at = &work->program.in[in].at;
    if (is_moved_whole(work, in)) return;
    const char *type = at->n <= 0x7FFFFFFF ? "uint32_t" : "int64_t";
    say(text, "    static HL_MEMBER int64_t from_%d(int64_t i)\n    {\n", in);
    say(text, "        %s rest = (%s)i;\n        int64_t at = 0;\n", type, type);
    for (int d = at->rank - 1; d >= 0; d--) {
        if (d > 0 && at->stride[d])
            say(text, "        at += (int64_t)(rest %% %lld) * %lld;\n", (long long)at->dim[d],
                (long long)at->stride[d]);
        if (d == 0 && at->stride[d])
            say(text, "        at += (int64_t)rest * %lld;\n", (long long)at->stride[d]);
        if (d > 0) say(text, "        rest /= %lld;\n", (long long)at->dim[d]);
    }
    say(text, "        return at;\n    }\n");
}

static void say_load(source_text *text, const hl_cuda_pointwise *work, int step)
{
    int in = work->program.code[step].in;
    const char *dtype = name_dtype(work->program.in[in].dtype);
    char at[32] = "i";
    if (!is_moved_whole(work, in)) snprintf(at, sizeof at, "from_%d(i)", in);
    say(text, "        V x%d[W];\n", step);
    switch (find_form(work, in)) {
    case FORM_RUN:
        say(text, "        hl_load_pack<%s, W>(operands.p[%d], %s, x%d);\n", dtype, in, at, step);
        break;
    case FORM_SPREAD:
        say(text, "        hl_spread<%s, W>(operands.p[%d], %s, x%d);\n", dtype, in, at, step);
        break;
    case FORM_EACH:
        say(text,
            "        HL_UNROLL\n"
            "        for (int k = 0; k < W; k++)\n"
            "            x%d[k] = hl_memory<V>::read(operands.p[%d], %s, from_%d(i + k));\n",
            step, in, dtype, in);
        break;
    }
}

/* Random step number `draw`. Neighbours of one sample share a block of bits. */
static void say_draw(source_text *text, const hl_cuda_pointwise *work, int step, int draw)
{
    const hl_cuda_program *p = &work->program;
    bool shares = p->sample_size % work->walk.width == 0;
    say(text, "        uint32_t x%d[W];\n", step);
    if (!shares) say(text, "        for (int k = 0; k < W; k++)\n    ");
    say(text, "        hl_draw<%s>(operands.p[%d], keys.word[%d], keys.word[%d], i%s, %lld, ",
        shares ? "W" : "1", p->code[step].in, 2 * draw, 2 * draw + 1, shares ? "" : " + k",
        (long long)p->sample_size);
    say(text, shares ? "x%d);\n" : "*(uint32_t(*)[1])(x%d + k));\n", step);
}

/* ---- code ------------------------------------------------------------------------------------ */

/* By its bits: decimal digits depend on the locale, and infinities have none. */
static void say_number(source_text *text, const hl_cuda_pointwise *work, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (work->kind == HL_PW_I64)
        say(text, "%lldLL", (long long)number);
    else
        say(text, "(V)hl_bits_double(0x%llXull)", (unsigned long long)bits);
}

static void say_step(source_text *text, const hl_cuda_pointwise *work, int s)
{
    const hl_cuda_step *step = &work->program.code[s];
    const uint8_t operand[3] = {step->a, step->b, step->c};
    say(text, "            V r%d = ", step->dst);
    switch (step->op) {
    case HL_PW_LOAD: say(text, "x%d[k]", s); break;
    case HL_PW_NUMBER: say_number(text, work, step->number); break;
    case HL_PW_UNIFORM: say(text, "hl_uniform<V>(x%d[k])", s); break;
    case HL_PW_DROPOUT_MASK:
        say(text, "x%d[k] < %u ? (V)0 : ", s, step->threshold);
        say_number(text, work, step->number);
        break;
    default:
        say(text, "hl_pw_%s(", hl_pw_name((hl_pw_op)step->op));
        for (int k = 0; k < hl_pw_operands((hl_pw_op)step->op); k++)
            say(text, k ? ", r%d" : "r%d", operand[k]);
        if (step->op == HL_PW_CAST) say(text, ", %s", name_dtype(step->dtype));
        say(text, ")");
    }
    say(text, ";\n");
}

static void say_take(source_text *text, const hl_cuda_pointwise *work)
{
    const hl_cuda_program *p = &work->program;
    say(text, "    template <int W> HL_MEMBER void take(int64_t i, V (*sum)[WIDTH]) "
              "const\n    {\n");
    for (int s = 0, draw = 0; s < p->n_code; s++) {
        if (p->code[s].op == HL_PW_LOAD) say_load(text, work, s);
        if (hl_cuda_is_random(&p->code[s])) say_draw(text, work, s, draw++);
    }
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_PW_FULL) say(text, "        V y%d[W];\n", j);
    say(text, "        HL_UNROLL\n        for (int k = 0; k < W; k++) {\n");
    for (int s = 0; s < p->n_code; s++) say_step(text, work, s);
    for (int j = 0, n_sums = 0; j < p->n_out; j++) {
        if (p->out[j].reduce == HL_PW_FULL)
            say(text, "            y%d[k] = r%d;\n", j, p->out[j].reg);
        else
            say(text, "            sum[%d][k] = r%d;\n", n_sums++, p->out[j].reg);
    }
    say(text, "        }\n");
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_PW_FULL)
            say(text, "        hl_store_pack<%s, W>(operands.p[%d], i, y%d);\n",
                name_dtype(p->out[j].dtype), p->n_in + j, j);
    say(text, "    }\n");
}

/* May `width` elements of every operand that is moved so be moved at once? */
static void say_alignment(source_text *text, const hl_cuda_pointwise *work)
{
    const hl_cuda_program *p = &work->program;
    say(text, "    HL_MEMBER bool is_aligned() const\n    {\n        return true");
    for (int s = 0; s < p->n_code; s++) {
        int in = p->code[s].in;
        if (p->code[s].op != HL_PW_LOAD || find_form(work, in) != FORM_RUN) continue;
        say(text, " &&\n            hl_pack<%s, WIDTH>::is_aligned(operands.p[%d])",
            name_dtype(p->in[in].dtype), in);
    }
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_PW_FULL)
            say(text, " &&\n            hl_pack<%s, WIDTH>::is_aligned(operands.p[%d])",
                name_dtype(p->out[j].dtype), p->n_in + j);
    say(text, ";\n    }\n");
}

static void say_sums(source_text *text, const hl_cuda_program *p)
{
    say(text, "    static HL_MEMBER int width()\n    {\n        return WIDTH;\n    }\n");
    say(text, "    static HL_MEMBER int n_sums()\n    {\n        return SUMS;\n    }\n");
    say(text, "    static HL_MEMBER int reduce(int s)\n    {\n");
    for (int s = 0; s < p->n_sums; s++)
        say(text, "        if (s == %d) return %d;\n", s, p->out[p->sum_out[s]].reduce);
    say(text, "        return 0;\n    }\n");
    say(text, "    HL_MEMBER void put(int s, int64_t at, V value) const\n    {\n");
    for (int s = 0; s < p->n_sums; s++)
        say(text, "        if (s == %d) hl_memory<V>::write(operands.p[%d], %s, at, value);\n", s,
            p->n_in + p->sum_out[s], name_dtype(p->out[p->sum_out[s]].dtype));
    say(text, "    }\n");
}

/* What stands between the braces of the program's struct. */
static void say_members(source_text *text, const hl_cuda_pointwise *work)
{
    static const char *const types[] = {"float", "double", "int64_t"};
    const hl_cuda_program *p = &work->program;
    int n_keys = hl_cuda_pointwise_keys(p, NULL);
    say(text, "    typedef %s V;\n", types[work->kind]);
    int unroll = work->walk.width > p->n_sums ? work->walk.width : p->n_sums;
    say(text, "    enum { WIDTH = %d, SUMS = %d, UNROLL = %d };\n", work->walk.width, p->n_sums,
        unroll);
    say(text, "    enum { OPERANDS = %d, KEYS = %d };\n", p->n_in + p->n_out, n_keys);
    say(text, "    const hl_cuda_operands &operands;\n");
    if (n_keys) say(text, "    struct draw_keys {\n        uint32_t word[KEYS];\n    };\n");
    if (n_keys) say(text, "    const draw_keys &keys;\n");
    for (int s = 0; s < p->n_code; s++)
        if (p->code[s].op == HL_PW_LOAD) say_place(text, work, p->code[s].in);
    say_sums(text, p);
    say_alignment(text, work);
    say_take(text, work);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static hl_status give_text(source_text *text, char **out_source)
{
    *out_source = NULL;
    if (text->status != HL_OK)
        hl_free(text->data);
    else
        *out_source = text->data;
    return text->status;
}

/* The kernel's name comes from what is said before it. */
static void name_kernel(const source_text *text, const char *prefix, char *out_name)
{
    uint64_t hash = hl_hash_bytes(HL_HASH_START, text->data, (size_t)text->n);
    snprintf(out_name, HL_CUDA_NAME_BYTES, "%s_%016llx", prefix, (unsigned long long)hash);
}

hl_status hl_cuda_generate(const hl_cuda_pointwise *work, HL_GIVE char **out_source,
                           char out_name[HL_CUDA_NAME_BYTES])
{
    source_text text = {HL_OK, NULL, 0, 0};
    bool draws = hl_cuda_pointwise_keys(&work->program, NULL) > 0;
    say(&text, "#include \"kernels/cuda/walk.h\"\n\nstruct program {\n");
    say_members(&text, work);
    say(&text, "};\n\n");
    name_kernel(&text, "hl_pw", out_name);
    say(&text,
        "HL_KERNEL(%s, HL_CUDA_WALK_THREADS, hl_cuda_operands operands, hl_cuda_walk walk,\n"
        "          void *scratch%s)\n{\n"
        "    hl_walk(program{operands%s}, walk, (program::V *)scratch);\n}\n",
        out_name, draws ? ", program::draw_keys keys" : "", draws ? ", keys" : "");
    return give_text(&text, out_source);
}

/* Program k of the kernel: a block of a part that is it. */
static void say_part(source_text *text, int k, bool draws)
{
    say(text,
        "    if (parts.program[part] == %d) {\n"
        "        hl_cuda_operands own;\n"
        "        hl_part_operands<program_%d::OPERANDS>(operands, parts.first_operand[part], "
        "own);\n",
        k, k);
    if (draws)
        say(text,
            "        program_%d::draw_keys own_keys;\n"
            "        hl_part_keys(keys, parts.first_key[part], own_keys.word);\n",
            k);
    say(text, "        hl_part_walk(program_%d{own%s}, parts, part, block);\n    }\n", k,
        draws ? ", own_keys" : "");
}

/* A program's struct as number k, unless it is one of the k before it, whose members are `member`.
 * Returns its number. */
static int say_once(source_text *text, const hl_cuda_pointwise *work, int k, int64_t (*member)[2])
{
    int64_t begin = text->n;
    say(text, "struct program_%d {\n", k);
    member[k][0] = text->n;
    say_members(text, work);
    int64_t n = member[k][1] = text->n - member[k][0];
    say(text, "};\n\n");
    for (int i = 0; i < k && text->status == HL_OK; i++) {
        if (member[i][1] != n ||
            memcmp(text->data + member[i][0], text->data + member[k][0], (size_t)n) != 0)
            continue;
        text->n = begin;
        return i;
    }
    return k;
}

hl_status hl_cuda_generate_together(const hl_cuda_pointwise *works, int n,
                                    HL_GIVE char **out_source, char out_name[HL_CUDA_NAME_BYTES],
                                    uint8_t *out_program)
{
    source_text text = {HL_OK, NULL, 0, 0};
    int n_programs = 0;
    int64_t member[HL_CUDA_PARTS][2]; /* where the members of a program begin, and their bytes */
    bool draws[HL_CUDA_PARTS];
    say(&text, "#include \"kernels/cuda/parts.h\"\n\n");
    for (int i = 0; i < n; i++) {
        int k = say_once(&text, &works[i], n_programs, member);
        out_program[i] = (uint8_t)k;
        if (k < n_programs) continue;
        draws[n_programs++] = hl_cuda_pointwise_keys(&works[i].program, NULL) > 0;
    }
    name_kernel(&text, "hl_pw_together", out_name);
    say(&text,
        "HL_KERNEL(%s, HL_CUDA_WALK_THREADS, hl_cuda_parts parts,\n"
        "          hl_cuda_parts_operands operands, hl_cuda_parts_keys keys)\n{\n"
        "    int block = hl_block_x(), part = hl_part_find(parts, block);\n",
        out_name);
    for (int k = 0; k < n_programs; k++) say_part(&text, k, draws[k]);
    say(&text, "}\n");
    return give_text(&text, out_source);
}
