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

/* Are these the words of an exception, perhaps cut, or do they end with its words? */
static bool says(const char *message, const char *said, bool *out_is_same)
{
    size_t n = strlen(message), n_said = strlen(said);
    *out_is_same = n && strncmp(said, message, n) == 0;
    return *out_is_same || (n_said && n > n_said && strcmp(message + n - n_said, said) == 0);
}

/* The exception of the class with these words: what a source raised, if that is it; a new one,
 * whose cause that is if it has the same words, or these with a context in front. */
static PyObject *make_exception(hl_py_state *state, PyObject *class, PyObject *words)
{
    PyObject *raised = state->raised, *made = NULL;
    PyObject *text = raised ? PyObject_Str(raised) : NULL;
    const char *said = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    bool is_same = false, is_its = said && says(hl_status_message(), said, &is_same);
    PyErr_Clear();
    Py_XDECREF(text);
    if (is_its) state->raised = NULL;
    if (is_same && PyObject_IsInstance(raised, class) == 1) return raised;
    made = PyObject_CallFunctionObjArgs(class, words, NULL);
    if (made && is_its)
        PyException_SetCause(made, raised);
    else if (is_its)
        Py_DECREF(raised);
    return made;
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
    PyObject *exception = make_exception(state, class, words);
    if (exception) PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
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
