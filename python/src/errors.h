/* From hl_status to the exceptions of hotloop.errors. */
#ifndef HL_PYTHON_ERRORS_H
#define HL_PYTHON_ERRORS_H

#include "state.h"

/* Raises the exception of a code with the thread's hl_status_message; returns NULL. Call it before
 * anything else may set a status. */
PyObject *hl_py_raise(hl_py_state *state, hl_status code);
/* Raises a code with a message of one's own; returns NULL. */
PyObject *hl_py_fail(hl_py_state *state, hl_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Is the exception that is set that of a code? */
bool hl_py_is_raised(hl_py_state *state, hl_status code);
/* None, or the exception of a code. */
PyObject *hl_py_none_or_raise(hl_py_state *state, hl_status code);
/* "; did you mean 'relu'?" or "" of hotloop.base.suggest, for a message that fails anyway: 0 bytes
 * are written when even that fails. `names` is a list of str. */
void hl_py_suggest(const char *name, PyObject *names, char *out_text, size_t bytes);

#endif
