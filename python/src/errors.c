/* Errors: a status becomes an exception here and nowhere else.
 *
 * The classes are Python's (hotloop/errors.py), imported at the first raise and kept in the module
 * state: importing the core costs nothing for them, and the core works where only it is loaded. */
#include "errors.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static PyObject *find_class(hl_py_state *state, hl_status code)
{
    if (code <= HL_OK || code >= HL_STATUS_COUNT) code = HL_ERROR_INTERNAL;
    if (!state->errors[code]) {
        PyObject *module = PyImport_ImportModule("hotloop.errors");
        if (!module) return NULL;
        PyObject *found = PyObject_GetAttrString(module, hl_status_name(code));
        Py_DECREF(module);
        if (!found) return NULL;
        /* The import may have run Python code that raised the same. */
        PyObject *before = state->errors[code];
        state->errors[code] = found;
        Py_XDECREF(before);
    }
    return state->errors[code];
}

static bool says_out_of_memory(const char *text)
{
    static const char words[] = "out of memory";
    for (; *text; text++)
        if (strncasecmp(text, words, sizeof words - 1) == 0) return true;
    return false;
}

/* What a source raised is the cause of the error that ends with its words. */
static void add_cause(hl_py_state *state, PyObject *words)
{
    PyObject *type, *value, *traceback, *text;
    if (!state->raised) return;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    text = PyObject_Str(state->raised);
    bool is_said = text && value && PyUnicode_GetLength(text) > 0 &&
                   PyUnicode_Tailmatch(words, text, 0, PY_SSIZE_T_MAX, 1) == 1;
    if (is_said) {
        PyException_SetCause(value, state->raised);
        state->raised = NULL;
    }
    PyErr_Clear();
    Py_XDECREF(text);
    PyErr_Restore(type, value, traceback);
}

PyObject *hl_py_raise(hl_py_state *state, hl_status code)
{
    char text[HL_STATUS_MESSAGE_BYTES + 32];
    const char *message = hl_status_message();
    bool prefix = code == HL_ERROR_MEMORY && !says_out_of_memory(message);
    snprintf(text, sizeof text, "%s%s", prefix ? "out of memory: " : "", message);
    PyObject *class = find_class(state, code);
    if (!class) return NULL;
    PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!words) return NULL;
    PyErr_SetObject(class, words);
    if (code == HL_ERROR_DATA) add_cause(state, words);
    Py_DECREF(words);
    return NULL;
}

PyObject *hl_py_fail(hl_py_state *state, hl_status code, const char *format, ...)
{
    char text[HL_STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    hl_text_format(text, sizeof text, format, args);
    va_end(args);
    return hl_py_raise(state, hl_status_set(code, "%s", text));
}

bool hl_py_is_raised(hl_py_state *state, hl_status code)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *class = find_class(state, code);
    if (!class) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return class && PyErr_ExceptionMatches(class);
}

PyObject *hl_py_none_or_raise(hl_py_state *state, hl_status code)
{
    if (code != HL_OK) return hl_py_raise(state, code);
    return Py_NewRef(Py_None);
}

void hl_py_suggest(const char *name, PyObject *names, char *out_text, size_t bytes)
{
    *out_text = '\0';
    PyObject *text = NULL, *module = PyImport_ImportModule("hotloop.base.suggest");
    if (module) text = PyObject_CallMethod(module, "did_you_mean", "sO", name, names);
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (utf8) hl_text_copy(out_text, bytes, utf8);
    Py_XDECREF(text);
    Py_XDECREF(module);
    PyErr_Clear();
}
