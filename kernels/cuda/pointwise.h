/* A pointwise node on the device, for whichever runs it: the interpreter of pointwise.cu, or a
 * kernel generated for it. */
#ifndef HL_CUDA_POINTWISE_H
#define HL_CUDA_POINTWISE_H

#include "kernels/cuda/calls.h"
#include "kernels/cuda/compiled.h"
#include "kernels/cuda/program.h"

typedef struct hl_cuda_pointwise {
    hl_cuda_program program;
    hl_program_groups groups;
    hl_pw_kind kind;
    hl_cuda_tiles tiles;
} hl_cuda_pointwise;

static inline bool hl_cuda_is_random(const hl_cuda_step *step)
{
    return hl_pw_is_random((hl_pw_op)step->op);
}

/* Makes a node's program; the places of partial sums are left open. */
hl_status hl_cuda_pointwise_make(const hl_graph *graph, hl_node_id id, hl_cuda_pointwise *out_work);
/* Lays out scratch: partials of every sum, then, from *out_first on, what merging them needs.
 * Returns its size. */
size_t hl_cuda_place_partials(hl_cuda_pointwise *work, size_t *out_first);

/* The numbers that a generated kernel takes as arguments, in the order in which its source names
 * them. */
typedef struct hl_cuda_numbers {
    int n;
    uint64_t word[HL_CUDA_NUMBERS];
} hl_cuda_numbers;
int hl_cuda_count_numbers(const hl_cuda_pointwise *work);

/* Lists the launch of a program that is interpreted, or of one that is compiled under this name,
 * with these numbers. */
void hl_cuda_call_interpreter(const hl_cuda_pointwise *work, hl_cuda_shape shape,
                              hl_cuda_calls *calls);
void hl_cuda_call_compiled(const hl_cuda_pointwise *work, const char *name,
                           const hl_cuda_numbers *numbers, hl_cuda_shape shape,
                           hl_cuda_calls *calls);

/* C++ source of a kernel that does what the interpreter does with the program, bit for bit: its
 * text, from hl_alloc, and its name, which comes from the text. It takes hl_cuda_compiled_params,
 * with as many numbers as there are, but one at least. */
enum { HL_CUDA_NAME_BYTES = 32 };
hl_status hl_cuda_generate(const hl_cuda_pointwise *work, HL_GIVE char **out_source,
                           char out_name[HL_CUDA_NAME_BYTES], hl_cuda_numbers *out_numbers);
/* The same for n programs without sums in one kernel (parts.h), with at most HL_CUDA_PARTS_NUMBERS
 * numbers. Programs that differ in numbers alone are generated once. Fills in each part's program
 * and first number, and all numbers. */
hl_status hl_cuda_generate_horizontal(const hl_cuda_pointwise *works, int n,
                                      HL_GIVE char **out_source, char out_name[HL_CUDA_NAME_BYTES],
                                      hl_cuda_compiled_parts_params *params);

/* A step of a sequence (sequence.h): a function of it, or a program. */
typedef struct hl_cuda_generated_step {
    const char *name, *kind;
    int64_t first_byte;            /* of its parameters */
    const hl_cuda_pointwise *work; /* NULL: no program */
    hl_cuda_numbers numbers;       /* the program's, filled in */
} hl_cuda_generated_step;
/* The same for steps that one block does in order. */
hl_status hl_cuda_generate_sequence(hl_cuda_generated_step *steps, int n, HL_GIVE char **out_source,
                                    char out_name[HL_CUDA_NAME_BYTES]);

/* Makes sure that the device has the generated kernel of this name; compiles it if need be.
 * HL_ERROR_DEVICE where NVRTC is absent or fails: the log says why, and the interpreter does the
 * same. */
hl_status hl_cuda_compile(hl_device *device, const char *source, const char *name);
/* Is there an NVRTC for it? On a device that is described: yes. */
bool hl_cuda_can_compile(hl_device *device);

/* hl_kernel's functions for horizontal fusion. */
bool hl_cuda_is_horizontal(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                           int32_t n);
hl_status hl_cuda_prepare_horizontal(hl_device *device, const hl_graph *graph,
                                     const hl_node_id *ids, int32_t n, hl_kernel_state *out_state);

#endif
