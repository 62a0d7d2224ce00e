/* The search for libraries, a driver that is none or too old, and the reader of fatbins on what
 * nvcc made for this build. */
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/fatbin.h"
#include "tests/c/check.h"
#include "tests/cuda/fake_table.h"

static void test_no_driver(void)
{
    hl_cuda_driver driver;
    bool is_absent;
    setenv("HOTLOOP_CUDA_PATH", "/dev/null", 1);
    CHECK_ERROR(hl_cuda_driver_open(NULL, &driver, &is_absent), HL_ERROR_DEVICE,
                "needs an NVIDIA driver, got none (HOTLOOP_CUDA_PATH does not name it: ");
    setenv("HOTLOOP_CUDA_PATH", "libc.so.6", 1);
    CHECK_ERROR(hl_cuda_driver_open(NULL, &driver, &is_absent), HL_ERROR_DEVICE,
                "must be 525 or newer (CUDA 12.0), got one without cuInit in ");
    CHECK(driver.library.handle == NULL && !is_absent);
    unsetenv("HOTLOOP_CUDA_PATH");
    hl_os_fault(1, true, 2);
    CHECK_ERROR(hl_cuda_driver_open(NULL, &driver, &is_absent), HL_ERROR_DEVICE,
                "libcuda.so.1 is not in this process, and the system does not find it; "
                "HOTLOOP_CUDA_PATH may name it");
    CHECK(is_absent);
    hl_os_fault(0, false, 0);
}

/* A library stands in for NVIDIA's: what matters is where it is looked for. */
static int say_version(hl_os_library library)
{
    return library.handle ? 120803 : 0;
}

static void write_version(int version, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%d", version);
}

static void test_search(void)
{
    char root[] = "/tmp/hl-library-XXXXXX", path[512], command[2048];
    const hl_library_kind kind = {.name = "Sample",
                                  .variable = "HOTLOOP_SAMPLE_PATH",
                                  .sonames = {"libhlsample.so.13", "libhlsample.so.12"},
                                  .folders = {"cu13/lib", "sample/lib"},
                                  .cuda = {13000, 12000},
                                  .version = say_version,
                                  .version_text = write_version};
    hl_library_found found;
    hl_library_find(&kind, NULL, &found);
    CHECK(!found.library.handle);
    CHECK(strstr(found.why_not, "libhlsample.so.13 or libhlsample.so.12 is not in this process, in "
                                "no nvidia wheel of this Python, and the system") != NULL);
    CHECK(mkdtemp(root) != NULL);
    snprintf(command, sizeof command,
             "mkdir -p %s/nvidia/sample/lib && cd %s/nvidia/sample/lib && echo 'int hl_sample;' > "
             "s.c && gcc -shared -fPIC s.c -Wl,-soname,libhlsample.so.12 -o libhlsample.so.12",
             root, root);
    CHECK_INT(system(command), 0);
    snprintf(path, sizeof path, "/nowhere::%s", root);
    hl_library_find(&kind, &(hl_library_search){.roots = path, .driver = 11080}, &found);
    CHECK(!found.library.handle);
    hl_library_find(&kind, &(hl_library_search){.driver = 12040}, &found);
    CHECK(strncmp(found.why_not, "libhlsample.so.12 is not", 24) == 0); /* 13 needs more */
    hl_library_find(&kind, &(hl_library_search){.roots = path, .driver = 12040}, &found);
    CHECK(found.library.handle && strstr(found.path, "/nvidia/sample/lib/libhlsample.so.12"));
    CHECK(strcmp(found.version_text, "120803") == 0 && !*found.why_not);
    hl_os_library_close(&found.library);
    hl_library_find(&kind, NULL, &found); /* it stays in the process */
    CHECK(found.library.handle != NULL);
    hl_os_library_close(&found.library);
    snprintf(path, sizeof path, "%s/nvidia/sample/lib", root); /* a folder will do */
    setenv("HOTLOOP_SAMPLE_PATH", path, 1);
    hl_library_find(&kind, NULL, &found);
    CHECK(found.library.handle != NULL);
    hl_os_library_close(&found.library);
    setenv("HOTLOOP_SAMPLE_PATH", "/nowhere/lib.so", 1); /* who names one means that one */
    hl_library_find(&kind, NULL, &found);
    CHECK(!found.library.handle && strstr(found.why_not, "HOTLOOP_SAMPLE_PATH does not name it: "));
    unsetenv("HOTLOOP_SAMPLE_PATH");
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_INT(system(command), 0);
}

static int find_free_descriptor(void)
{
    int descriptor = dup(0);
    close(descriptor);
    return descriptor;
}

/* A variable that names a folder without the library, or with one that does not load. */
static void test_folders(void)
{
    char root[] = "/tmp/hl-library-XXXXXX", command[256];
    hl_library_found found;
    int free_descriptor = find_free_descriptor();
    CHECK(mkdtemp(root) != NULL);
    setenv("HOTLOOP_NVRTC_PATH", root, 1);
    const struct {
        const char *make, *want;
    } cases[] = {
        {"true", "HOTLOOP_NVRTC_PATH names a folder with no libnvrtc.so.13 or libnvrtc.so.12: %s"},
        {"touch libnvrtc-builtins.so.11.8 libnvrtc.so.11 libnvrtc.so.11.2 libnvrtc.so",
         "HOTLOOP_NVRTC_PATH names a folder with libnvrtc.so.11.2 but no libnvrtc.so.13 or "
         "libnvrtc.so.12: %s"},
        {"touch libnvrtc.so.12",
         "HOTLOOP_NVRTC_PATH does not name it: %s/libnvrtc.so.12: file too short"},
    };
    for (int i = 0; i < 3; i++) {
        char want[256];
        check_case("folder %d", i);
        snprintf(command, sizeof command, "cd %s && %s", root, cases[i].make);
        CHECK_INT(system(command), 0);
        snprintf(want, sizeof want, cases[i].want, root);
        hl_library_find(&hl_library_nvrtc, NULL, &found);
        CHECK(!found.library.handle);
        if (strcmp(found.why_not, want) != 0)
            check_fail(__FILE__, __LINE__, "got '%s', want '%s'", found.why_not, want);
    }
    for (int k = 1; k < 8; k++) { /* the system refuses a call of the search */
        check_case("call %d fails", k);
        hl_os_fault(k, false, 13);
        hl_library_find(&hl_library_nvrtc, NULL, &found);
        hl_os_fault(0, false, 0);
        CHECK(!found.library.handle);
        CHECK(strstr(found.why_not, "HOTLOOP_NVRTC_PATH does not name it: ") != NULL);
    }
    check_case("%s", "");
    CHECK_INT(find_free_descriptor(), free_descriptor);
    unsetenv("HOTLOOP_NVRTC_PATH");
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_INT(system(command), 0);
}

/* What was embedded, if this build has CUDA. */
static void test_embedded(void)
{
    const hl_cuda_build *build = hl_cuda_build_get();
    size_t bytes = (size_t)(build->fatbins_end - build->fatbins);
    CHECK_INT(bytes > 0, build->toolkit > 0);
    if (!bytes) {
        CHECK_SKIP("this build has no CUDA kernels (HL_CUDA=1 make build says why)");
        return;
    }
    hl_fatbin_cursor cursor = hl_fatbin_begin(build->fatbins, bytes);
    int n_containers = 0, n_sm = 0, n_ptx = 0;
    for (;;) {
        const void *code;
        CHECK_OK(hl_fatbin_next(&cursor, &code));
        if (!code) break;
        n_containers++;
        for (;;) {
            hl_fatbin_image image;
            bool more;
            CHECK_OK(hl_fatbin_next_image(&cursor, &image, &more));
            if (!more) break;
            CHECK(image.arch >= 75 && image.arch < 200 && image.bytes > 0);
            n_sm += !image.is_ptx;
            n_ptx += image.is_ptx;
        }
    }
    CHECK(n_containers > 0 && n_sm >= n_containers);
    CHECK_INT(n_ptx, n_containers);
    hl_fatbin_fit fit;
    char archs[160];
    CHECK_OK(hl_fatbin_check(build->fatbins, bytes, 999, &fit, archs, sizeof archs));
    CHECK(fit == HL_FATBIN_PTX && strstr(archs, "compute_"));
    CHECK_OK(hl_fatbin_check(build->fatbins, bytes, 60, &fit, archs, sizeof archs));
    CHECK(fit == HL_FATBIN_NONE);
    printf("%d fatbins of %s, %zu bytes\n", n_containers, archs, bytes);
}

/* nvcc's own output, compressed in each of its ways, and every length that it might be cut to.
 * Returns the length. */
static size_t check_file(const char *path)
{
    static _Alignas(64) unsigned char data[1 << 20];
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    if (!file) return 0;
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    hl_fatbin_fit fit;
    char archs[160];
    CHECK_OK(hl_fatbin_check(data, bytes, 76, &fit, archs, sizeof archs));
    CHECK(fit == HL_FATBIN_CODE);
    if (strcmp(archs, "sm_75, sm_90, compute_90") != 0 &&
        strcmp(archs, "compute_90, sm_75, sm_90") != 0 &&
        strcmp(archs, "compute_90, sm_90, sm_75") != 0)
        check_fail(__FILE__, __LINE__, "architectures: got %s", archs);
    CHECK_OK(hl_fatbin_check(data, bytes, 80, &fit, archs, 0));
    CHECK(fit == HL_FATBIN_NONE);
    CHECK_OK(hl_fatbin_check(data, bytes, 100, &fit, archs, 0));
    CHECK(fit == HL_FATBIN_PTX);
    for (size_t cut = 1; cut < bytes; cut += 7) {
        hl_status status = hl_fatbin_check(data, cut, 90, &fit, archs, sizeof archs);
        if (status == HL_OK) check_fail(__FILE__, __LINE__, "cut to %zu: accepted", cut);
    }
    return bytes;
}

static void test_nvcc_output(void)
{
    if (system("command -v \"${NVCC:-nvcc}\" > /dev/null 2>&1") != 0) {
        CHECK_SKIP("nvcc is not on PATH (NVCC may name it)");
        return;
    }
    static const char *const modes[] = {"none", "speed", "size"};
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        char path[64] = "/tmp/hl-fatbin-XXXXXX", command[512];
        CHECK(mkdtemp(path) != NULL);
        snprintf(command, sizeof command,
                 "\"${NVCC:-nvcc}\" -fatbin --compress-mode=%s -gencode arch=compute_75,code=sm_75 "
                 "-gencode "
                 "arch=compute_90,code=[sm_90,compute_90] -Icsrc -I. kernels/cuda/probe.cu -o "
                 "%s/out.fatbin",
                 modes[i], path);
        check_case("compressed for %s", modes[i]);
        CHECK_INT(system(command), 0);
        char file[96];
        snprintf(file, sizeof file, "%s/out.fatbin", path);
        bytes[i] = check_file(file);
        snprintf(command, sizeof command, "rm -rf %s", path);
        CHECK_INT(system(command), 0);
    }
    CHECK(bytes[1] < bytes[0] && bytes[2] < bytes[0]); /* they were compressed */
    check_case("%s", "");
}

static void test_image_rule(void)
{
    hl_fatbin_image image = {.arch = 80};
    CHECK(hl_fatbin_image_runs(&image, 80) && hl_fatbin_image_runs(&image, 89));
    CHECK(!hl_fatbin_image_runs(&image, 75) && !hl_fatbin_image_runs(&image, 90));
    CHECK(!hl_fatbin_image_runs(&image, 87)); /* a Jetson runs no machine code of a card's */
    image.arch = 87;
    CHECK(hl_fatbin_image_runs(&image, 87) && !hl_fatbin_image_runs(&image, 89));
    image = (hl_fatbin_image){.arch = 80, .is_ptx = true};
    CHECK(hl_fatbin_image_runs(&image, 87));
    CHECK(hl_fatbin_image_runs(&image, 120) && !hl_fatbin_image_runs(&image, 75));
}

int main(void)
{
    test_no_driver();
    test_search();
    test_folders();
    test_image_rule();
    test_embedded();
    test_nvcc_output();
    return CHECK_DONE();
}
