/* Packing of B, written once for all types. A file that includes this gives first:
 *
 * SOURCE       an element of B as it lies
 * PACK(name)   the names that are defined here
 * TERMS        neighbours in k that make one word
 * load_words   a vector of words of `lanes` columns side by side, from TERMS rows that lie k_stride
 *              apart; `left` of them are B's
 * load_run     a vector of words of one column, from `left` terms side by side, or as many as fit
 * pick_words   as load_words, from columns that lie n_stride apart
 *
 * pick_term    a vector of words, of terms a and b of the words that load_run gave
 *
 * Rows are read whole, across panels, whatever their stride is. Columns go through squares of words
 * in registers. A convolution's weights have neither side by side, but segments, the kernel's taps:
 * they lie between the terms of a column, or between the columns of a row, and squares sort them.
 */

/* Asks for n elements some rows ahead: rows are too far apart for the hardware to see the pattern.
 * An address beyond the matrix is harmless. */
HL_SIMD void PACK(prefetch_row)(const SOURCE *row, int64_t k_stride, int64_t n)
{
    enum { ROWS_AHEAD = 32 };
    uintptr_t ahead = (uintptr_t)row + (uintptr_t)(ROWS_AHEAD * k_stride) * sizeof(SOURCE);
    uintptr_t end = ahead + (uintptr_t)n * sizeof(SOURCE);
    for (; ahead < end; ahead += 64) __builtin_prefetch((const void *)ahead);
}

HL_SIMD void PACK(store_words)(hl_gemm_word *to, hl_v words)
{
    hl_v_store((float *)(void *)to, words);
}

static void PACK(rows)(int64_t k, int64_t n_panels, int64_t panel_words, const void *source,
                       int64_t k_stride, hl_gemm_word *packed)
{
    const SOURCE *b = source;
    for (int64_t i = 0; i < k; i += TERMS, b += TERMS * k_stride, packed += HL_GEMM_PANEL) {
        for (int t = 0; t < TERMS; t++)
            PACK(prefetch_row)(b + t * k_stride, k_stride, n_panels * HL_GEMM_PANEL);
        for (int64_t p = 0; p < n_panels; p++) {
            const SOURCE *from = b + p * HL_GEMM_PANEL;
            hl_gemm_word *to = packed + p * panel_words;
            PACK(store_words)(to, load_words(from, k_stride, HL_VL, k - i));
            PACK(store_words)(to + HL_VL, load_words(from + HL_VL, k_stride, HL_VL, k - i));
        }
    }
}

/* The last panel, padded with zeros. */
static void PACK(edge)(int64_t k, int64_t lanes, const void *source, int64_t k_stride,
                       hl_gemm_word *packed)
{
    const SOURCE *b = source;
    int64_t first = min64(lanes, HL_VL), second = lanes - first;
    for (int64_t i = 0; i < k; i += TERMS, b += TERMS * k_stride, packed += HL_GEMM_PANEL) {
        hl_v high = hl_v_zero();
        if (second) high = load_words(b + HL_VL, k_stride, second, k - i);
        PACK(store_words)(packed, load_words(b, k_stride, first, k - i));
        PACK(store_words)(packed + HL_VL, high);
    }
}

static void PACK(runs)(int64_t k, const void *const *rows, int64_t offset, hl_gemm_word *packed)
{
    for (int64_t i = 0; i < k; i += TERMS, packed += HL_GEMM_PANEL) {
        const SOURCE *at = (const SOURCE *)rows[i] + offset;
        int64_t apart = 0;
        if (TERMS > 1 && i + 1 < k)
            apart = ((intptr_t)rows[i + 1] - (intptr_t)rows[i]) / (intptr_t)sizeof(SOURCE);
        PACK(store_words)(packed, load_words(at, apart, HL_VL, k - i));
        PACK(store_words)(packed + HL_VL, load_words(at + HL_VL, apart, HL_VL, k - i));
    }
}

/* Columns of the panel are rows in memory. */
static void PACK(transposed)(int64_t k, int64_t lanes, const void *source, int64_t n_stride,
                             hl_gemm_word *packed)
{
    const SOURCE *b = source;
    for (int64_t v = 0; v < HL_GEMM_PANEL; v += HL_VL)
        for (int64_t i = 0; i < k; i += TERMS * HL_VL) {
            hl_v square[HL_VL];
            for (int64_t j = 0; j < HL_VL; j++)
                square[j] =
                    v + j < lanes ? load_run(b + (v + j) * n_stride + i, k - i) : hl_v_zero();
            hl_v_transpose(square);
            int64_t rows = min64(HL_VL, ceil_div(k - i, TERMS));
            for (int64_t j = 0; j < rows; j++)
                PACK(store_words)(packed + (i / TERMS + j) * HL_GEMM_PANEL + v, square[j]);
        }
}

/* Where the first segment in memory lies, and which it is: s counts from there. */
static const SOURCE *PACK(find_first)(const hl_gemm_b *how, const void *source)
{
    const SOURCE *b = source;
    return how->segment_stride < 0 ? b - (how->n_segments - 1) : b;
}
static hl_gemm_word *PACK(find_segment)(const hl_gemm_b *how, int64_t s, hl_gemm_word *packed)
{
    if (how->segment_stride < 0) s = how->n_segments - 1 - s;
    return packed + s * ceil_div(how->k, TERMS) * HL_GEMM_PANEL;
}

/* Segments between terms: a column is one run, whose words are turned first. */
static void PACK(between_terms)(const hl_gemm_b *how, int64_t lanes, const void *source,
                                hl_gemm_word *packed)
{
    _Alignas(64) hl_gemm_word turned[HL_GEMM_TAPS_MAX * HL_VL * HL_GEMM_PANEL];
    const int64_t S = how->n_segments, k = how->k, run = k * S;
    const SOURCE *b = PACK(find_first)(how, source);
    for (int64_t c = 0; c < k; c += TERMS * HL_VL) {
        for (int64_t q = 0; q < S; q++)
            for (int64_t v = 0; v < HL_GEMM_PANEL; v += HL_VL) {
                int64_t at = c * S + q * TERMS * HL_VL;
                hl_v square[HL_VL];
                for (int64_t j = 0; j < HL_VL; j++)
                    square[j] = v + j < lanes && at < run
                                    ? load_run(b + (v + j) * how->n_stride + at, run - at)
                                    : hl_v_zero();
                hl_v_transpose(square);
                hl_gemm_word *to = turned + q * HL_VL * HL_GEMM_PANEL + v;
                for (int64_t j = 0; j < HL_VL; j++, to += HL_GEMM_PANEL)
                    PACK(store_words)(to, square[j]);
            }
        int64_t rows = min64(HL_VL, ceil_div(k - c, TERMS));
        for (int64_t s = 0; s < S; s++) {
            hl_gemm_word *to = PACK(find_segment)(how, s, packed) + c / TERMS * HL_GEMM_PANEL;
            for (int64_t i = 0; i < rows; i++, to += HL_GEMM_PANEL) {
                int64_t a = i * TERMS * S + s;
                PACK(store_words)(to, pick_term(turned, a, a + S));
                PACK(store_words)(to + HL_VL, pick_term(turned + HL_VL, a, a + S));
            }
        }
    }
}

/* Segments between columns. */
static void PACK(between_columns)(const hl_gemm_b *how, int64_t lanes, const void *source,
                                  hl_gemm_word *packed)
{
    const int64_t S = how->n_segments, k = how->k;
    const SOURCE *b = PACK(find_first)(how, source);
    for (int64_t i = 0; i < k; i += TERMS, b += TERMS * how->k_stride, packed += HL_GEMM_PANEL)
        for (int64_t v = 0; v < HL_GEMM_PANEL; v += HL_VL)
            for (int64_t s = 0; s < S; s += HL_VL) {
                int64_t n = min64(HL_VL, S - s);
                hl_v square[HL_VL];
                for (int64_t j = 0; j < HL_VL; j++)
                    square[j] = v + j < lanes
                                    ? load_words(b + (v + j) * S + s, how->k_stride, n, k - i)
                                    : hl_v_zero();
                hl_v_transpose(square);
                for (int64_t j = 0; j < n; j++)
                    PACK(store_words)(PACK(find_segment)(how, s + j, packed) + v, square[j]);
            }
}

static void PACK(scattered)(const hl_gemm_b *how, int64_t lanes, const void *source,
                            hl_gemm_word *packed)
{
    const int64_t k = how->k, n_stride = how->n_stride, rows = ceil_div(k, TERMS);
    const int64_t first = min64(lanes, HL_VL), second = lanes - first;
    for (int64_t i = 0; i < k; i += TERMS)
        for (int64_t s = 0; s < how->n_segments; s++) {
            const SOURCE *b = (const SOURCE *)source + i * how->k_stride + s * how->segment_stride;
            hl_gemm_word *to = packed + (s * rows + i / TERMS) * HL_GEMM_PANEL;
            hl_v low = pick_words(b, how->k_stride, n_stride, first, k - i), high = hl_v_zero();
            if (second)
                high = pick_words(b + HL_VL * n_stride, how->k_stride, n_stride, second, k - i);
            PACK(store_words)(to, low);
            PACK(store_words)(to + HL_VL, high);
        }
}

static const hl_gemm_packer PACK(packer) = {PACK(rows),          PACK(edge),
                                            PACK(runs),          PACK(transposed),
                                            PACK(between_terms), PACK(between_columns),
                                            PACK(scattered)};

#undef SOURCE
#undef PACK
#undef load_words
#undef load_run
#undef pick_words
#undef pick_term
