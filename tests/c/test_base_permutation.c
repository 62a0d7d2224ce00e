/* The epoch's permutation: a bijection for every n, as even as a shuffle by counts of places, of
 * whole orders, of neighbours and between epochs; filling in parts gives the same. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "tests/c/check.h"

static void fill(uint64_t n, uint64_t epoch, int64_t *out)
{
    hl_permutation p;
    hl_permutation_init(&p, hl_rng_key_make(11, "order"), epoch, n);
    hl_permutation_fill(&p, 0, (int64_t)n, out);
}

static bool is_bijection(const int64_t *image, int64_t n, char *seen)
{
    memset(seen, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        if (image[i] < 0 || image[i] >= n || seen[image[i]]) return false;
        seen[image[i]] = 1;
    }
    return true;
}

static void test_bijection(void)
{
    enum { MAX = 3000000 };
    static const int64_t large[] = {65535, 65536, 65537, 1281167, 1 << 21, MAX};
    int64_t *image = malloc(MAX * sizeof *image);
    char *seen = malloc(MAX);
    for (int64_t n = 0; n <= 2000; n++) {
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            fill((uint64_t)n, epoch, image);
            check_case("n %lld, epoch %d", (long long)n, (int)epoch);
            CHECK(is_bijection(image, n, seen));
        }
    }
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        fill((uint64_t)large[i], i, image);
        check_case("n %lld", (long long)large[i]);
        CHECK(is_bijection(image, large[i], seen));
    }
    check_case("%s", "");
    free(seen);
    free(image);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Too large to visit whole: many images, all in range and different, from both sides of the 16-bit
 * lanes' limit; the first 2^18 and a random sample. */
static void test_large(void)
{
    enum { N = 1 << 18 };
    static const uint64_t sizes[] = {((uint64_t)1 << 31) - 1,
                                     (uint64_t)1 << 31,
                                     ((uint64_t)1 << 31) + 1,
                                     (uint64_t)1 << 32,
                                     ((uint64_t)1 << 40) + 7,
                                     ((uint64_t)1 << 62) + 1,
                                     INT64_MAX};
    int64_t *image = malloc(N * sizeof *image);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k];
        hl_permutation p;
        hl_permutation_init(&p, hl_rng_key_make(k, "large"), 1, n);
        for (int part = 0; part < 3; part++) {
            uint64_t stride = n / N; /* part 2: spread over all of [0, n) */
            if (part < 2) hl_permutation_fill(&p, part ? n - N : 0, N, image);
            for (uint64_t i = 0; part == 2 && i < N; i++)
                image[i] = (int64_t)hl_permutation_at(&p, i * stride);
            qsort(image, N, sizeof *image, compare);
            check_case("n %llu, part %d", (unsigned long long)n, part);
            CHECK(image[0] >= 0 && (uint64_t)image[N - 1] < n);
            int64_t n_equal = 0;
            for (int64_t i = 1; i < N; i++) n_equal += image[i] == image[i - 1];
            CHECK_INT(n_equal, 0);
            /* Spread evenly: the k-th smallest is near k/N of n, 5 sigma of a uniform sample. */
            for (int64_t i = 0; i < N; i += N / 16) {
                double at = (double)image[i] / (double)n, want = (double)i / N;
                CHECK(fabs(at - want) < 5 * 0.5 / sqrt(N));
            }
        }
    }
    check_case("%s", "");
    free(image);
}

static void test_parts(void)
{
    static const uint64_t sizes[] = {1, 2, 5, 255, 256, 257, 1000, 4097, 70001};
    int64_t *whole = malloc(70001 * sizeof *whole), *part = malloc(70002 * sizeof *part);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k];
        hl_permutation p;
        hl_permutation_init(&p, hl_rng_key_make(11, "order"), 9, n);
        fill(n, 9, whole);
        check_case("n %d", (int)n);
        for (uint64_t i = 0; i < n; i++) CHECK_INT(hl_permutation_at(&p, i), whole[i]);
        for (uint64_t first = 0; first < n; first += n / 7 + 1) {
            uint64_t count = (n - first + 1) / 2;
            part[count] = -1;
            hl_permutation_fill(&p, first, (int64_t)count, part);
            CHECK(!memcmp(part, whole + first, count * sizeof *part) && part[count] == -1);
        }
    }
    check_case("%s", "");
    free(whole);
    free(part);
}

/* Chi-square of the counts of `cells` equally likely cells, in sigmas above its mean. */
static double measure_sigmas(const int64_t *counts, int64_t cells, double total)
{
    double chi = 0, want = total / (double)cells;
    for (int64_t i = 0; i < cells; i++) chi += pow((double)counts[i] - want, 2) / want;
    double freedom = (double)cells - 1;
    return (chi - freedom) / sqrt(2 * freedom);
}

/* Over many epochs each of the n! orders comes equally often. */
static void test_small_orders(void)
{
    static const int factorial[] = {1, 1, 2, 6, 24, 120, 720};
    for (int n = 2; n <= 6; n++) {
        static int64_t counts[720];
        memset(counts, 0, sizeof counts);
        int n_epochs = factorial[n] * 200;
        for (int epoch = 0; epoch < n_epochs; epoch++) {
            int64_t image[6];
            fill((uint64_t)n, (uint64_t)epoch, image);
            int rank = 0;
            for (int i = 0; i < n; i++) {
                int n_smaller = 0;
                for (int j = i + 1; j < n; j++) n_smaller += image[j] < image[i];
                rank = rank * (n - i) + n_smaller;
            }
            counts[rank]++;
        }
        check_case("n %d", n);
        CHECK(measure_sigmas(counts, factorial[n], n_epochs) < 5);
    }
    check_case("%s", "");
}

/* Over epochs, each position takes each value equally often, and so does each step from a position
 * to its neighbour. (Rows sum to the number of epochs, which takes freedom away: a bound above
 * only.) */
static void test_places(void)
{
    static const int64_t sizes[] = {7, 8, 9, 31, 33, 64, 100, 129, 255, 257};
    enum { MAX = 257, EPOCHS = 20000 };
    static int64_t places[MAX * MAX], steps[MAX], image[MAX];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        memset(places, 0, sizeof places);
        memset(steps, 0, sizeof steps);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            fill((uint64_t)n, (uint64_t)epoch, image);
            for (int64_t i = 0; i < n; i++) {
                places[i * n + image[i]]++;
                if (i > 0) steps[(image[i] - image[i - 1] + n) % n]++;
            }
        }
        check_case("n %d", (int)n);
        CHECK(measure_sigmas(places, n * n, (double)n * EPOCHS) < 5);
        CHECK_INT(steps[0], 0);
        CHECK(measure_sigmas(steps + 1, n - 1, (double)(n - 1) * EPOCHS) < 5);
    }
    check_case("%s", "");
}

/* One long epoch: 64 x 64 cells of (position, value), 64 x 64 of (value, next value), the steps
 * between neighbours at several distances, and what one epoch says about the next. */
static void test_long_epochs(void)
{
    static const int64_t sizes[] = {50000, 60000, 65536, 1281167, 2000003};
    enum { SIDE = 64 };
    static int64_t cells[6][SIDE * SIDE];
    int64_t *image = malloc(2000003 * sizeof *image), *next = malloc(2000003 * sizeof *next);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k], n_fixed = 0;
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            fill((uint64_t)n, epoch, image);
            fill((uint64_t)n, epoch + 1, next);
            memset(cells, 0, sizeof cells);
            n_fixed = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t value = image[i] * SIDE / n, place = i * SIDE / n;
                int64_t near = image[(i + 1) % n], far = image[(i + 256) % n];
                cells[0][place * SIDE + value]++;
                cells[1][value * SIDE + near * SIDE / n]++;
                cells[2][value * SIDE + far * SIDE / n]++;
                cells[3][(near - image[i] + n) % n * SIDE * SIDE / n]++;
                cells[4][(far - image[i] + n) % n * SIDE * SIDE / n]++;
                cells[5][value * SIDE + next[i] * SIDE / n]++;
                n_fixed += image[i] == next[i];
            }
            for (int i = 0; i < 6; i++) {
                check_case("n %lld, epoch %d, count %d", (long long)n, (int)epoch, i);
                CHECK(measure_sigmas(cells[i], SIDE * SIDE, (double)n) < 5);
            }
            CHECK(n_fixed < 12); /* Poisson with mean 1 */
        }
    }
    check_case("%s", "");
    free(image);
    free(next);
}

int main(void)
{
    test_bijection();
    test_large();
    test_parts();
    test_small_orders();
    test_places();
    test_long_epochs();
    return CHECK_DONE();
}
