/* The module hotloop._core: initialisation, small functions.
 *
 * Multi-phase, with all state per module and no static Python object. Sub-interpreters are refused,
 * because NumPy's C API refuses them: by the slot where Python has it (3.12) and, as legacy ones
 * pass that, by a guard that lets in one interpreter per process. */
#include <stdatomic.h>

#include "args.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/os.h"
#include "errors.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/ref/ref.h"
#include "numpy_api.h"
#include "objects.h"

PyMODINIT_FUNC PyInit__core(void);

/* ---- what the types share -------------------------------------------------------------------- */

int hl_py_traverse_type(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

void hl_py_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- functions ------------------------------------------------------------------------------- */

static const char *compiler_text(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

static bool append_text(PyObject *list, const char *text)
{
    PyObject *words = PyUnicode_FromString(text);
    bool good = words && PyList_Append(list, words) == 0;
    Py_XDECREF(words);
    return good;
}

static PyObject *list_texts(const char *const *texts, size_t n)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++)
        if (texts[i] && !append_text(list, texts[i])) Py_CLEAR(list);
    return list;
}

static PyObject *list_sanitizers(void)
{
    const char *texts[2] = {NULL, NULL};
#ifdef __SANITIZE_ADDRESS__
    texts[0] = "address";
#endif
#ifdef __SANITIZE_THREAD__
    texts[1] = "thread";
#endif
    return list_texts(texts, 2);
}

/* Those compiled in, or those of them that this machine can run. */
static PyObject *list_isas(bool usable)
{
    hl_os_cpu cpu;
    hl_os_cpu_read(&cpu);
    const char *texts[5] = {NULL, NULL, NULL, NULL, "portable"};
#ifdef __x86_64__
    if (cpu.amx || !usable) texts[0] = "amx";
    if (cpu.avx512_bf16 || !usable) texts[1] = "avx512bf16";
    if (cpu.avx512 || !usable) texts[2] = "avx512";
    if (cpu.avx2 || !usable) texts[3] = "avx2";
#else
    (void)usable;
#endif
    return list_texts(texts, 5);
}

/* "13.0: sm_75, sm_90, compute_90", or False. */
static PyObject *describe_cuda(void)
{
    const hl_cuda_build *build = hl_cuda_build_get();
    size_t bytes = (size_t)(build->fatbins_end - build->fatbins);
    if (!bytes) return PyBool_FromLong(0);
    hl_fatbin_fit fit;
    char archs[160];
    if (hl_fatbin_check(build->fatbins, bytes, 0, &fit, archs, sizeof archs) != HL_OK)
        hl_text_copy(archs, sizeof archs, hl_status_message());
    return PyUnicode_FromFormat("%d.%d: %s", build->toolkit / 1000, build->toolkit % 1000 / 10,
                                archs);
}

static PyObject *get_build_info(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *dict = PyDict_New();
    bool optimized = false, asserts = true;
#ifdef __OPTIMIZE__
    optimized = true;
#endif
#ifdef NDEBUG
    asserts = false;
#endif
    if (!dict || !hl_py_dict_put(dict, "compiler", hl_py_from_text(compiler_text())) ||
        !hl_py_dict_put(dict, "optimized", PyBool_FromLong(optimized)) ||
        !hl_py_dict_put(dict, "assertions", PyBool_FromLong(asserts)) ||
        !hl_py_dict_put(dict, "sanitizers", list_sanitizers()) ||
        !hl_py_dict_put(dict, "instruction_sets", list_isas(false)) ||
        !hl_py_dict_put(dict, "python_abi", PyLong_FromLong(Py_LIMITED_API)) ||
        !hl_py_dict_put(dict, "cuda", describe_cuda()))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *get_cpu_info(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    hl_os_cpu cpu;
    hl_os_cpu_read(&cpu);
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "name", hl_py_from_text(cpu.name)) ||
        !hl_py_dict_put(dict, "threads", PyLong_FromLong(hl_os_cpu_count())) ||
        !hl_py_dict_put(dict, "isa", list_isas(true)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *take_log(PyObject *module, PyObject *unused)
{
    static const char *const levels[] = {
        [HL_LOG_DEBUG] = "debug", [HL_LOG_INFO] = "info", [HL_LOG_WARNING] = "warning"};
    (void)module, (void)unused;
    hl_log_level level;
    char text[HL_STATUS_MESSAGE_BYTES];
    if (!hl_log_take(&level, text, sizeof text)) return Py_NewRef(Py_None);
    PyObject *words = hl_py_from_text(text);
    return words ? Py_BuildValue("(sN)", levels[level], words) : NULL;
}

static PyObject *get_alloc_stats(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    hl_alloc_stats stats;
    hl_alloc_stats_read(&stats);
    return Py_BuildValue("{sLsLsLsL}", "current_bytes", (long long)stats.current_bytes,
                         "peak_bytes", (long long)stats.peak_bytes, "n_live",
                         (long long)stats.n_live, "n_total", (long long)stats.n_total);
}

static PyObject *reset_alloc_peak(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    hl_alloc_peak_reset();
    return Py_NewRef(Py_None);
}

static PyObject *set_alloc_fault(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of_module(module);
    int64_t k;
    bool sticky = false;
    if (!hl_py_args_count("alloc_fault", n_args, 1, 2) ||
        !hl_py_int(state, args[0], "k", 0, INT64_MAX, &k) ||
        (n_args > 1 && !hl_py_bool(args[1], "sticky", &sticky)))
        return NULL;
    return PyLong_FromLongLong(hl_alloc_fault(k, sticky));
}

static PyObject *list_backends(PyObject *module, PyObject *unused)
{
    (void)unused;
    const hl_registry *registry = &hl_py_state_of_module(module)->registry;
    PyObject *tuple = PyTuple_New(registry->n);
    for (int i = 0; tuple && i < registry->n; i++) {
        PyObject *name = PyUnicode_FromString(registry->backend[i]->name);
        if (name)
            PyTuple_SetItem(tuple, i, name);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyMethodDef functions[] = {
    {"op_table", hl_py_op_table, METH_NOARGS,
     "op_table($module, /)\n--\n\nEvery op that may be added from Python: name, min_in, max_in, "
     "n_out, attrs, doc, differentiable, pointwise."},
    {"build_info", get_build_info, METH_NOARGS,
     "build_info($module, /)\n--\n\nCompiler, optimisation, assertions, sanitizers, instruction "
     "sets, CUDA: how this extension was built."},
    {"log_take", take_log, METH_NOARGS,
     "log_take($module, /)\n--\n\nOldest (level, text) of the core's log, or None."},
    {"alloc_stats", get_alloc_stats, METH_NOARGS,
     "alloc_stats($module, /)\n--\n\ncurrent_bytes, peak_bytes, n_live, n_total of the core's "
     "allocator."},
    {"alloc_peak_reset", reset_alloc_peak, METH_NOARGS,
     "alloc_peak_reset($module, /)\n--\n\npeak_bytes starts again from current_bytes."},
    {"alloc_fault", HL_PY_METH_FAST(set_alloc_fault),
     "alloc_fault($module, k, sticky=False, /)\n--\n\nThe k-th allocation from now fails (0: "
     "none). Returns how many were made since the last call. For tests."},
    {"backends", list_backends, METH_NOARGS,
     "backends($module, /)\n--\n\nNames of the backends in this build."},
    {"survey", HL_PY_METH_KEYWORDS(hl_py_survey),
     "survey($module, backend, library_roots=None, *, probe=True)\n--\n\nDevices and libraries "
     "that a backend of GPUs finds; probe: each device is opened, and each library."},
    {"cpu_info", get_cpu_info, METH_NOARGS,
     "cpu_info($module, /)\n--\n\nname, threads, isa (usable instruction sets, best first)."},
    {"random_uniform", HL_PY_METH_KEYWORDS(hl_py_random_uniform),
     "random_uniform($module, seed, stream, n, low, high)\n--\n\nn uniform numbers in [low, "
     "high)."},
    {"random_normal", HL_PY_METH_KEYWORDS(hl_py_random_normal),
     "random_normal($module, seed, stream, n, mean, std)\n--\n\nn normal numbers."},
    {"random_trunc_normal", HL_PY_METH_KEYWORDS(hl_py_random_trunc_normal),
     "random_trunc_normal($module, seed, stream, n, mean, std, low, high)\n--\n\nn normal numbers "
     "in [low, high]."},
    {"permutation", HL_PY_METH_KEYWORDS(hl_py_permutation),
     "permutation($module, seed, stream, epoch, n)\n--\n\nThe numbers 0 to n - 1 in an epoch's "
     "order."},
    {"check_finite", HL_PY_METH_FAST(hl_py_check_finite),
     "check_finite($module, array, /)\n--\n\nIndex of the first NaN or infinity of a float array "
     "(any strides), or None."},
    {"check_range", HL_PY_METH_FAST(hl_py_check_range),
     "check_range($module, array, low, high, /)\n--\n\nIndex of the first integer outside [low, "
     "high), or None."},
    {"gather_rows", HL_PY_METH_FAST(hl_py_gather_rows),
     "gather_rows($module, array, rows, dtype, window=0, /)\n--\n\narray[rows] as dtype, by "
     "the kernel that training uses, without the GIL; with window, the so many rows from each on."},
    {"predict", HL_PY_METH_KEYWORDS(hl_py_predict),
     "predict($module, device, graph, *, n_slots=1, k=1, fuse=True, chain=True, "
     "compute_dtype='float32', capture=True, fed=False, deterministic=False, benchmark=False, "
     "overlap=True, recompute=0.0)\n--\n\n"
     "Plan.info() of the "
     "plan that a new session would make, and its text, without memory of the device."},
    {"write_file", HL_PY_METH_FAST(hl_py_write_file),
     "write_file($module, path, parts, /)\n--\n\nAtomic file writer: the buffers one after "
     "another; CheckpointError leaves the old file as it was."},
    {"image_decoder", hl_py_image_decoder, METH_NOARGS,
     "image_decoder($module, /)\n--\n\nversion and path of TurboJPEG (None: it is not there), and "
     "why_not."},
    {"image_header", HL_PY_METH_FAST(hl_py_image_header),
     "image_header($module, file, /)\n--\n\n(format, height, width) of a path or of bytes, "
     "upright; 0 for sizes that only a decoder knows."},
    {"decode_image", HL_PY_METH_FAST(hl_py_decode_image),
     "decode_image($module, file, channels=3, min_height=0, min_width=0, reader=None, /)\n--\n\n"
     "The image of a path or of bytes, uint8 (height, width, channels), upright."},
    {"image_source", HL_PY_METH_KEYWORDS(hl_py_image_source),
     "image_source($module, paths, n, channels, augment, *, reader=None, caching='nothing', "
     "cache_bytes=0, on_bad='raise', bad_max=0, companions=(), annotations=None, "
     "stored=None)\n--\n\nA Source of n image files, whose names stand in bytes, each with a NUL."},
    {"image_report", HL_PY_METH_FAST(hl_py_image_report),
     "image_report($module, source, /)\n--\n\nbad_rows, first_bad, cached_rows, cached_bytes of "
     "an image_source."},
    {"file_source", HL_PY_METH_FAST(hl_py_file_source),
     "file_source($module, paths, offsets, divisors, shape, allow_nonfinite, function, /)\n--\n\n"
     "A Source of float32 rows that lie in files as they are."},
    {"augment", HL_PY_METH_FAST(hl_py_augment),
     "augment($module, image, augment, key, labels=None, points=None, source=None, /)\n--\n\n"
     "Planes, labels, points, whether each is inside, and the matrix from the output to the "
     "source: of an image (height, width, channels) by a packed augmentation, key (epoch, row, "
     "is_training)."},
    {NULL, NULL, 0, NULL},
};

/* ---- initialisation -------------------------------------------------------------------------- */

/* -1 until the first interpreter came. */
static _Atomic int64_t the_interpreter = -1;

static bool check_interpreter(void)
{
    int64_t mine = PyInterpreterState_GetID(PyInterpreterState_Get()), none = -1;
    if (mine < 0) return false;
    if (atomic_compare_exchange_strong(&the_interpreter, &none, mine) || none == mine) return true;
    PyErr_SetString(PyExc_ImportError,
                    "hotloop._core: must be loaded by one interpreter of a process (as NumPy's C "
                    "API), got a second one");
    return false;
}

static bool intern_names(hl_py_state *state)
{
    static const char *const texts[HL_PY_NAME_COUNT] = {
#define X(name) #name,
        HL_PY_NAMES(X)
#undef X
    };
    for (int i = 0; i < HL_PY_NAME_COUNT; i++) {
        state->names[i] = PyUnicode_InternFromString(texts[i]);
        if (!state->names[i]) return false;
    }
    return true;
}

static bool add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out_type)
{
    *out_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out_type && PyModule_AddType(module, *out_type) == 0;
}

/* The version is written once, in Python. */
static bool add_version(PyObject *module)
{
    PyObject *source = PyImport_ImportModule("hotloop._version");
    PyObject *version = source ? PyObject_GetAttrString(source, "__version__") : NULL;
    bool good = version && PyModule_AddObjectRef(module, "__version__", version) == 0;
    Py_XDECREF(version);
    Py_XDECREF(source);
    return good;
}

static int execute(PyObject *module)
{
    hl_py_state *state = hl_py_state_of_module(module);
    if (!check_interpreter() || !hl_py_array_import() || !intern_names(state)) return -1;
    const hl_backend *backends[] = {hl_null_backend(), hl_ref_backend(), hl_cpu_backend(),
                                    hl_cuda_backend()};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        hl_status status = hl_registry_add(&state->registry, backends[i]);
        if (status != HL_OK) {
            hl_py_raise(state, status);
            return -1;
        }
    }
    return add_version(module) && add_type(module, &hl_py_graph_spec, &state->graph_type) &&
                   add_type(module, &hl_py_device_spec, &state->device_type) &&
                   add_type(module, &hl_py_session_spec, &state->session_type) &&
                   add_type(module, &hl_py_feed_spec, &state->feed_type) &&
                   add_type(module, &hl_py_plan_spec, &state->plan_type) &&
                   add_type(module, &hl_py_resident_spec, &state->resident_type) &&
                   add_type(module, &hl_py_runner_spec, &state->runner_type) &&
                   add_type(module, &hl_py_source_spec, &state->source_type)
               ? 0
               : -1;
}

static int traverse_module(PyObject *module, visitproc visit, void *arg)
{
    hl_py_state *state = hl_py_state_of_module(module);
    if (!state) return 0;
    for (int i = 0; i < HL_STATUS_COUNT; i++) Py_VISIT(state->errors[i]);
    Py_VISIT(state->graph_type);
    Py_VISIT(state->device_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->feed_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->resident_type);
    Py_VISIT(state->runner_type);
    Py_VISIT(state->source_type);
    Py_VISIT(state->raised);
    return 0;
}

static int clear_module(PyObject *module)
{
    hl_py_state *state = hl_py_state_of_module(module);
    if (!state) return 0;
    for (int i = 0; i < HL_PY_NAME_COUNT; i++) Py_CLEAR(state->names[i]);
    for (int i = 0; i < HL_STATUS_COUNT; i++) Py_CLEAR(state->errors[i]);
    Py_CLEAR(state->graph_type);
    Py_CLEAR(state->device_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->feed_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->resident_type);
    Py_CLEAR(state->runner_type);
    Py_CLEAR(state->source_type);
    Py_CLEAR(state->raised);
    return 0;
}

static void free_module(void *module)
{
    hl_py_state *state = hl_py_state_of_module(module);
    if (!state) return;
    clear_module(module);
    hl_py_gather_destroy(state->gather);
    state->gather = NULL;
}

/* Python 3.12's slot and its value "not supported", which a limited API of 3.11 does not declare.
 */
enum { SLOT_MULTIPLE_INTERPRETERS = 3, PYTHON_3_12 = 0x030C0000 };

static PyModuleDef_Slot slots_3_11[] = {{Py_mod_exec, execute}, {0, NULL}};
static PyModuleDef_Slot slots_3_12[] = {
    {Py_mod_exec, execute}, {SLOT_MULTIPLE_INTERPRETERS, NULL}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop._core",
    .m_doc = "The C core as Python sees it. Private: hotloop wraps it.",
    .m_size = sizeof(hl_py_state),
    .m_methods = functions,
    .m_slots = slots_3_11,
    .m_traverse = traverse_module,
    .m_clear = clear_module,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__core(void)
{
    if (Py_Version >= PYTHON_3_12) definition.m_slots = slots_3_12;
    return PyModuleDef_Init(&definition);
}
