/* CUDA C++ of a pointwise program, for tile_iterator.h.
 *
 * Registers are local variables, and micro-ops are the functions that the interpreter calls
 * (micro.h), so both have the same bits. What is whole, or runs along the innermost dim, is moved
 * 16 bytes at a time where addresses allow it; another operand finds its element by coordinates in
 * the dims into which all operands of the program can be merged.
 *
 * A source is a structure, which values of a kind share: another batch size, another width of a
 * layer, the next dropout layer have the same one, which is compiled once. Extents, strides,
 * numbers of the program and keys of random steps are numbers (compiled.h), read from constant
 * memory where a constant of the code would come from, too; divisions by extents are products, as
 * by constants. It is specialised on what the shape of the code is made of:
 *   - steps, registers, dtypes of operands, what registers hold: the code itself;
 *   - how many dims are left, and which strides in them are 0 or 1: a broadcast operand costs no
 *     arithmetic in dims that it has not, nor a product where elements are neighbours;
 *   - elements at a time, and whether innermost dims and samples are whole multiples of them: these
 *     choose 16-byte loads and one block of random bits for several elements;
 *   - indices of 32 or 64 bits, whose arithmetic costs several times more;
 *   - kinds of sums: folds are code;
 *   - right operands of powers and remainders: of a general power most is branches that a constant
 *     decides. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/cuda/pointwise.h"

_Static_assert(7 * HL_PROGRAM_INS + 3 * (HL_PROGRAM_CODE - HL_PROGRAM_INS) +
                       HL_CUDA_DIVISOR_WORDS * HL_CUDA_RANK <=
                   HL_CUDA_NUMBERS,
               "all numbers of a program fit");

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

/* ---- numbers --------------------------------------------------------------------------------- */

/* The dims of the iteration in which every operand that is not whole goes by one stride: outermost
 * first; a step of a dim is so many elements. */
typedef struct joint_dims {
    int rank; /* 0: all are whole */
    int64_t dim[HL_CUDA_RANK], step[HL_CUDA_RANK];
} joint_dims;

/* A program while its source is written. */
typedef struct program_text {
    source_text *text;
    const hl_cuda_pointwise *work;
    joint_dims joint;
    hl_cuda_numbers *numbers;
    int sample;                     /* the divisor by samples; -1: an element is one */
    int number_of[HL_PROGRAM_CODE]; /* the first one of a step */
} program_text;

/* An operand of one element is none of these: its program serves any number of elements. */
static bool is_moved_whole(const hl_cuda_pointwise *work, int in)
{
    return work->program.in[in].is_whole && work->tiles.n != 1;
}

/* A load that finds its elements by coordinates. */
static bool is_placed(const hl_cuda_pointwise *work, int step)
{
    const hl_cuda_step *s = &work->program.code[step];
    return s->op == HL_PW_LOAD && !is_moved_whole(work, s->in);
}

/* Keeps `steps` ascending, each once. */
static void insert_step(int64_t *steps, int *n, int64_t step)
{
    int at = *n;
    for (int i = 0; i < *n; i++)
        if (steps[i] == step) return;
    while (at > 0 && steps[at - 1] > step) {
        steps[at] = steps[at - 1];
        at--;
    }
    steps[at] = step;
    (*n)++;
}

static joint_dims join_dims(const hl_cuda_pointwise *work)
{
    int64_t steps[HL_CUDA_RANK] = {1};
    int n = 0;
    for (int s = 0; s < work->program.n_code; s++) {
        if (!is_placed(work, s)) continue;
        const hl_cuda_layout *at = &work->program.in[work->program.code[s].in].at;
        int64_t step = 1;
        for (int d = at->rank - 1; d >= 0; step *= at->dim[d--]) insert_step(steps, &n, step);
    }
    joint_dims joint = {.rank = n};
    for (int d = 0; d < n; d++) {
        joint.step[d] = steps[n - 1 - d];
        joint.dim[d] = (d ? joint.step[d - 1] : work->tiles.n) / joint.step[d];
    }
    return joint;
}

/* An operand's, in a joint dim. */
static int64_t find_stride(const hl_cuda_layout *at, const joint_dims *joint, int dim)
{
    int64_t step = 1;
    for (int d = at->rank - 1; d >= 0; step *= at->dim[d--])
        if (joint->step[dim] < step * at->dim[d]) return at->stride[d] * (joint->step[dim] / step);
    return 0;
}

static bool is_number(int64_t stride)
{
    return stride != 0 && stride != 1;
}

/* Whether a number is the right operand of a power or a remainder. */
static bool is_exponent(const hl_cuda_program *p, int step)
{
    for (int s = 0; s < p->n_code; s++)
        if ((p->code[s].op == HL_PW_POW || p->code[s].op == HL_PW_MOD) &&
            p->code[s].b == p->code[step].dst)
            return true;
    return false;
}

static int count_random(const hl_cuda_program *p)
{
    int n = 0;
    for (int s = 0; s < p->n_code; s++) n += hl_cuda_is_random(&p->code[s]);
    return n;
}

/* Of the key, and for a mask of its threshold and scale. */
static int count_words(const hl_cuda_step *step)
{
    return step->op == HL_PW_DROPOUT_MASK ? 3 : 1;
}

int hl_cuda_count_numbers(const hl_cuda_pointwise *work)
{
    const hl_cuda_program *p = &work->program;
    joint_dims joint = join_dims(work);
    int n = joint.rank > 1 ? HL_CUDA_DIVISOR_WORDS * (joint.rank - 1) : 0;
    if (count_random(p) && p->sample_size > 1) n += HL_CUDA_DIVISOR_WORDS;
    for (int s = 0; s < p->n_code; s++) {
        for (int d = 0; d < joint.rank && is_placed(work, s); d++)
            n += is_number(find_stride(&p->in[p->code[s].in].at, &joint, d));
        if (hl_cuda_is_random(&p->code[s])) n += count_words(&p->code[s]);
        if (p->code[s].op == HL_PW_NUMBER) n += !is_exponent(p, s);
    }
    return n;
}

/* Returns its index. */
static int add_number(program_text *t, uint64_t word)
{
    t->numbers->word[t->numbers->n] = word;
    return t->numbers->n++;
}

static bool is_long(const hl_cuda_pointwise *work)
{
    return work->tiles.n > INT32_MAX;
}

/* Of an extent above one. */
static int add_divisor(program_text *t, int64_t d)
{
    int first = t->numbers->n;
    hl_cuda_divisor_make(d, is_long(t->work) ? 63 : 31, t->numbers->word + first);
    t->numbers->n += HL_CUDA_DIVISOR_WORDS;
    return first;
}

/* As registers hold it. */
static uint64_t make_word(const hl_cuda_pointwise *work, double number)
{
    float single = (float)number;
    uint32_t single_bits;
    uint64_t bits;
    memcpy(&single_bits, &single, sizeof single);
    memcpy(&bits, &number, sizeof bits);
    if (work->kind == HL_PW_I64) return (uint64_t)(int64_t)number;
    return work->kind == HL_PW_F32 ? single_bits : bits;
}

/* Divisors first: those of the joint dims from the second on, that of samples. */
static program_text begin_program(source_text *text, const hl_cuda_pointwise *work,
                                  hl_cuda_numbers *numbers)
{
    const hl_cuda_program *p = &work->program;
    program_text t = {
        .text = text, .work = work, .joint = join_dims(work), .numbers = numbers, .sample = -1};
    numbers->n = 0;
    for (int d = 1; d < t.joint.rank; d++) add_divisor(&t, t.joint.dim[d]);
    if (count_random(p) && p->sample_size > 1) t.sample = add_divisor(&t, p->sample_size);
    for (int s = 0; s < p->n_code; s++) {
        const hl_cuda_step *step = &p->code[s];
        t.number_of[s] = numbers->n;
        if (hl_cuda_is_random(step)) add_number(&t, step->key[0] | (uint64_t)step->key[1] << 32);
        if (step->op == HL_PW_DROPOUT_MASK) {
            add_number(&t, step->threshold);
            add_number(&t, make_word(work, step->number));
        }
        if (step->op == HL_PW_NUMBER && !is_exponent(p, s))
            add_number(&t, make_word(work, step->number));
    }
    return t;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* How the width of elements that a thread has finds an operand's. */
typedef enum operand_form {
    FORM_RUN,    /* neighbours in memory too */
    FORM_SPREAD, /* all the same one */
    FORM_EACH    /* one by one */
} operand_form;

static operand_form find_form(const hl_cuda_pointwise *work, int in)
{
    const hl_cuda_layout *at = &work->program.in[in].at;
    if (is_moved_whole(work, in)) return FORM_RUN;
    if (at->rank < 2) return FORM_SPREAD; /* one element */
    if (at->dim[at->rank - 1] % work->tiles.width) return FORM_EACH;
    return at->stride[at->rank - 1] ? FORM_RUN : FORM_SPREAD;
}

static void say_term(program_text *t, const char *coordinate, int64_t stride)
{
    if (stride == 1) say(t->text, "        at += %s;\n", coordinate);
    if (is_number(stride))
        say(t->text, "        at += %s * (index)number[%d];\n", coordinate,
            add_number(t, (uint64_t)stride));
}

/* A function from_<in>: where element i of the iteration lies. */
static void say_place(program_text *t, int in)
{
    const hl_cuda_layout *at = &t->work->program.in[in].at;
    int outermost = 0; /* in which it moves at all */
    while (outermost < t->joint.rank && find_stride(at, &t->joint, outermost) == 0) outermost++;
    say(t->text,
        "    HL_MEMBER int64_t from_%d(int64_t i) const\n    {\n"
        "        index rest = (index)i, c = 0, at = c;\n",
        in);
    for (int d = t->joint.rank - 1; d > 0 && d >= outermost; d--) {
        say(t->text, "        rest = hl_divide_by(number + %d, rest, &c);\n",
            HL_CUDA_DIVISOR_WORDS * (d - 1));
        say_term(t, "c", find_stride(at, &t->joint, d));
    }
    if (outermost == 0 && t->joint.rank > 0) say_term(t, "rest", find_stride(at, &t->joint, 0));
    say(t->text, "        return (int64_t)at;\n    }\n");
}

static void say_load(program_text *t, int step)
{
    const hl_cuda_pointwise *work = t->work;
    int in = work->program.code[step].in;
    const char *dtype = name_dtype(work->program.in[in].dtype);
    char at[32] = "i";
    if (!is_moved_whole(work, in)) snprintf(at, sizeof at, "from_%d(i)", in);
    say(t->text, "        V x%d[W];\n", step);
    switch (find_form(work, in)) {
    case FORM_RUN:
        say(t->text, "        hl_load_pack<%s, W>(operand[%d], %s, x%d);\n", dtype, in, at, step);
        break;
    case FORM_SPREAD:
        say(t->text, "        hl_spread<%s, W>(operand[%d], %s, x%d);\n", dtype, in, at, step);
        break;
    case FORM_EACH:
        say(t->text,
            "        HL_UNROLL\n"
            "        for (int k = 0; k < W; k++)\n"
            "            x%d[k] = hl_memory<V>::read(operand[%d], %s, from_%d(i + k));\n",
            step, in, dtype, in);
        break;
    }
}

/* Neighbours of one sample share a block of bits. */
static void say_draw(program_text *t, int step)
{
    bool shares = t->work->program.sample_size % t->work->tiles.width == 0;
    int key = t->number_of[step];
    say(t->text, "        uint32_t x%d[W];\n        HL_UNROLL\n", step);
    say(t->text, "        for (int k = 0; k < W; k += %s) {\n", shares ? "W" : "1");
    say(t->text, "            index element = 0, sample = (index)(i + k);\n");
    if (t->sample >= 0)
        say(t->text, "            sample = hl_divide_by(number + %d, sample, &element);\n",
            t->sample);
    say(t->text,
        "            hl_draw<%s>(operand[%d], (uint32_t)number[%d], (uint32_t)(number[%d] >> 32),\n"
        "                (int64_t)sample, (int64_t)element, *(uint32_t(*)[%s])(x%d + k));\n"
        "        }\n",
        shares ? "W" : "1", t->work->program.code[step].in, key, key, shares ? "W" : "1", step);
}

/* ---- code ------------------------------------------------------------------------------------ */

/* By its bits: decimal digits depend on the locale, and infinities have none. */
static void say_constant(program_text *t, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (t->work->kind == HL_PW_I64)
        say(t->text, "%lldLL", (long long)number);
    else
        say(t->text, "(V)hl_bits_double(0x%llXull)", (unsigned long long)bits);
}

static void say_step(program_text *t, int s)
{
    const hl_cuda_step *step = &t->work->program.code[s];
    const uint8_t operand[3] = {step->a, step->b, step->c};
    source_text *text = t->text;
    say(text, "            V r%d = ", step->dst);
    switch (step->op) {
    case HL_PW_LOAD: say(text, "x%d[k]", s); break;
    case HL_PW_NUMBER:
        if (is_exponent(&t->work->program, s))
            say_constant(t, step->number);
        else
            say(text, "hl_number<V>(number[%d])", t->number_of[s]);
        break;
    case HL_PW_UNIFORM: say(text, "hl_uniform<V>(x%d[k])", s); break;
    case HL_PW_DROPOUT_MASK:
        say(text, "x%d[k] < (uint32_t)number[%d] ? (V)0 : hl_number<V>(number[%d])", s,
            t->number_of[s] + 1, t->number_of[s] + 2);
        break;
    default:
        say(text, "hl_pw_%s(", hl_pw_id((hl_pw_op)step->op));
        for (int k = 0; k < hl_pw_operands((hl_pw_op)step->op); k++)
            say(text, k ? ", r%d" : "r%d", operand[k]);
        if (step->op == HL_PW_CAST) say(text, ", %s", name_dtype(step->dtype));
        say(text, ")");
    }
    say(text, ";\n");
}

static void say_take(program_text *t)
{
    const hl_cuda_program *p = &t->work->program;
    source_text *text = t->text;
    say(text, "    template <int W> HL_MEMBER void take(int64_t i, V (*sum)[WIDTH]) "
              "const\n    {\n");
    for (int s = 0; s < p->n_code; s++) {
        if (p->code[s].op == HL_PW_LOAD) say_load(t, s);
        if (hl_cuda_is_random(&p->code[s])) say_draw(t, s);
    }
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_CUDA_SUM_NONE) say(text, "        V y%d[W];\n", j);
    say(text, "        HL_UNROLL\n        for (int k = 0; k < W; k++) {\n");
    for (int s = 0; s < p->n_code; s++) say_step(t, s);
    for (int j = 0, n_sums = 0; j < p->n_out; j++) {
        if (p->out[j].reduce == HL_CUDA_SUM_NONE)
            say(text, "            y%d[k] = r%d;\n", j, p->out[j].reg);
        else
            say(text, "            sum[%d][k] = r%d;\n", n_sums++, p->out[j].reg);
    }
    say(text, "        }\n");
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_CUDA_SUM_NONE)
            say(text, "        hl_store_pack<%s, W>(operand[%d], i, y%d);\n",
                name_dtype(p->out[j].dtype), p->n_in + j, j);
    say(text, "    }\n");
}

/* May `width` elements of every operand that is moved so be moved at once? */
static void say_alignment(program_text *t)
{
    const hl_cuda_program *p = &t->work->program;
    source_text *text = t->text;
    say(text, "    HL_MEMBER bool is_aligned() const\n    {\n        return true");
    for (int s = 0; s < p->n_code; s++) {
        int in = p->code[s].in;
        if (p->code[s].op != HL_PW_LOAD || find_form(t->work, in) != FORM_RUN) continue;
        say(text, " &&\n            hl_pack_of<%s, WIDTH>::is_aligned(operand[%d])",
            name_dtype(p->in[in].dtype), in);
    }
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].reduce == HL_CUDA_SUM_NONE)
            say(text, " &&\n            hl_pack_of<%s, WIDTH>::is_aligned(operand[%d])",
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
        say(text, "        if (s == %d) hl_memory<V>::write(operand[%d], %s, at, value);\n", s,
            p->n_in + p->sum_out[s], name_dtype(p->out[p->sum_out[s]].dtype));
    say(text, "    }\n");
}

/* What stands between the braces of the program's struct; what it has for numbers. */
static void say_members(source_text *text, const hl_cuda_pointwise *work,
                        hl_cuda_numbers *out_numbers)
{
    static const char *const types[] = {"float", "double", "int64_t"};
    const hl_cuda_program *p = &work->program;
    program_text t = begin_program(text, work, out_numbers);
    say(text, "    typedef %s V;\n", types[work->kind]);
    say(text, "    typedef %s index;\n", is_long(work) ? "uint64_t" : "uint32_t");
    int unroll = work->tiles.width > p->n_sums ? work->tiles.width : p->n_sums;
    say(text, "    enum { WIDTH = %d, SUMS = %d, UNROLL = %d };\n", work->tiles.width, p->n_sums,
        unroll);
    say(text, "    void *const *operand;\n    const uint64_t *number;\n");
    for (int s = 0; s < p->n_code; s++)
        if (is_placed(work, s)) say_place(&t, p->code[s].in);
    say_sums(text, p);
    say_alignment(&t);
    say_take(&t);
    assert(out_numbers->n == hl_cuda_count_numbers(work));
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
                           char out_name[HL_CUDA_NAME_BYTES], hl_cuda_numbers *out_numbers)
{
    source_text text = {HL_OK, NULL, 0, 0};
    int n = hl_cuda_count_numbers(work);
    say(&text, "#define HL_CUDA_NUMBERS %d\n#include \"kernels/cuda/compiled.h\"\n\n",
        n > 0 ? n : 1);
    say(&text, "struct program {\n");
    say_members(&text, work, out_numbers);
    say(&text, "};\n\n");
    name_kernel(&text, "hl_pw", out_name);
    say(&text,
        "HL_KERNEL(%s, HL_CUDA_TILE_THREADS, HL_CONSTANT hl_cuda_compiled_params p)\n{\n"
        "    hl_iterate_tiles(program{p.at.operand, p.number}, p.tiles, (program::V "
        "*)p.at.scratch);\n}\n",
        out_name);
    return give_text(&text, out_source);
}

/* A program's struct as number k, unless it is one of the k before it, whose members are `member`.
 * Returns its number. */
static int say_once(source_text *text, const hl_cuda_pointwise *work, int k, int64_t (*member)[2],
                    hl_cuda_numbers *out_numbers)
{
    int64_t begin = text->n;
    say(text, "struct program_%d {\n", k);
    member[k][0] = text->n;
    say_members(text, work, out_numbers);
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

hl_status hl_cuda_generate_horizontal(const hl_cuda_pointwise *works, int n,
                                      HL_GIVE char **out_source, char out_name[HL_CUDA_NAME_BYTES],
                                      hl_cuda_compiled_parts_params *params)
{
    source_text text = {HL_OK, NULL, 0, 0};
    hl_cuda_numbers numbers;
    int n_programs = 0, n_numbers = 0;
    int64_t member[HL_CUDA_PARTS][2]; /* where the members of a program begin, and their bytes */
    say(&text, "#include \"kernels/cuda/compiled.h\"\n\n");
    for (int i = 0; i < n; i++) {
        int k = say_once(&text, &works[i], n_programs, member, &numbers);
        params->parts.program[i] = (uint8_t)k;
        params->parts.first_number[i] = (uint16_t)n_numbers;
        assert(n_numbers + numbers.n <= HL_CUDA_PARTS_NUMBERS);
        memcpy(params->number + n_numbers, numbers.word, (size_t)numbers.n * sizeof *numbers.word);
        n_numbers += numbers.n;
        if (k == n_programs) n_programs++;
    }
    name_kernel(&text, "hl_pw_several", out_name);
    say(&text,
        "HL_KERNEL(%s, HL_CUDA_TILE_THREADS, HL_CONSTANT hl_cuda_compiled_parts_params p)\n{\n"
        "    int block = hl_block_x(), part = hl_part_find(p.parts, block);\n"
        "    void *const *operand = p.at.operand + p.parts.first_operand[part];\n"
        "    const uint64_t *number = p.number + p.parts.first_number[part];\n",
        out_name);
    for (int k = 0; k < n_programs; k++)
        say(&text,
            "    if (p.parts.program[part] == %d)\n"
            "        hl_part_iterate(program_%d{operand, number}, p.parts, part, block);\n",
            k, k);
    say(&text, "}\n");
    return give_text(&text, out_source);
}

hl_status hl_cuda_generate_sequence(hl_cuda_generated_step *steps, int n, HL_GIVE char **out_source,
                                    char out_name[HL_CUDA_NAME_BYTES])
{
    source_text text = {HL_OK, NULL, 0, 0};
    int program[HL_KERNEL_HORIZONTAL], n_programs = 0;
    int64_t member[HL_KERNEL_HORIZONTAL][2];
    say(&text, "#include \"kernels/cuda/sequence.h\"\n\n");
    for (int i = 0; i < n; i++) {
        if (!steps[i].work) continue;
        program[i] = say_once(&text, steps[i].work, n_programs, member, &steps[i].numbers);
        if (program[i] == n_programs) n_programs++;
    }
    say(&text,
        "template <class S> HL_DEVICE void run(const hl_cuda_sequence_params &p, S &shared)\n"
        "{\n");
    for (int i = 0; i < n; i++) {
        if (i > 0) say(&text, "    hl_barrier_all();\n");
        say(&text, "    hl_step_%s", steps[i].name);
        if (steps[i].work) say(&text, "<program_%d>", program[i]);
        say(&text, "(hl_step_params<hl_cuda_%s_params>(p, %d), shared);\n", steps[i].kind,
            (int)steps[i].first_byte);
    }
    say(&text, "}\n\n");
    name_kernel(&text, "hl_sequence", out_name);
    say(&text,
        "HL_KERNEL(%s, HL_CUDA_SEQUENCE_THREADS, HL_CONSTANT hl_cuda_sequence_params p)\n{\n"
        "    HL_SHARED_DYNAMIC(float, shared);\n"
        "    run(p, shared);\n}\n",
        out_name);
    return give_text(&text, out_source);
}
