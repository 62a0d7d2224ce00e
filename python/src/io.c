/* write_file: the core's atomic writer over Python's buffers. */
#include "args.h"
#include "base/alloc.h"
#include "base/file.h"

typedef struct file_parts {
    Py_buffer *views;
    Py_ssize_t n_open, n;
    int64_t total;
} file_parts;

static void release_parts(file_parts *parts)
{
    while (parts->n_open) PyBuffer_Release(&parts->views[--parts->n_open]);
    hl_free(parts->views);
}

static bool open_parts(hl_py_state *state, PyObject *items, file_parts *out)
{
    *out = (file_parts){.n = PyTuple_Size(items)};
    hl_status status = hl_alloc((size_t)(out->n + 1) * sizeof *out->views, (void **)&out->views);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    for (Py_ssize_t i = 0; i < out->n; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(items, i), &out->views[i], PyBUF_SIMPLE) < 0)
            return false;
        out->n_open++;
        out->total += out->views[i].len;
    }
    return true;
}

static hl_status write_parts(const char *path, const file_parts *parts)
{
    hl_file_writer *writer;
    HL_TRY(hl_file_writer_begin(path, parts->total, &writer));
    for (Py_ssize_t i = 0; i < parts->n; i++) {
        hl_status status =
            hl_file_writer_write(writer, parts->views[i].buf, (size_t)parts->views[i].len);
        if (status != HL_OK) {
            hl_file_writer_abort(writer);
            return status;
        }
    }
    return hl_file_writer_commit(writer);
}

/* The path's bytes for the system, as a new bytes object. */
static PyObject *encode_path(PyObject *object)
{
    PyObject *bytes = NULL;
    return PyUnicode_FSConverter(object, &bytes) ? bytes : NULL;
}

HL_PY_FAST(hl_py_write_file)
{
    hl_py_state *state = hl_py_state_of_module(module);
    file_parts parts = {.n = 0};
    hl_status status = HL_OK;
    if (!hl_py_args_count("write_file", n_args, 2, 2)) return NULL;
    PyObject *items = hl_py_sequence(args[1], "parts");
    PyObject *path = items ? encode_path(args[0]) : NULL;
    bool good = path && open_parts(state, items, &parts);
    if (good) {
        const char *text = PyBytes_AsString(path);
        HL_PY_WITHOUT_GIL(status = write_parts(text, &parts));
    }
    PyObject *result = good ? hl_py_none_or_raise(state, status) : NULL;
    release_parts(&parts);
    Py_XDECREF(path);
    Py_XDECREF(items);
    return result;
}
