"""Mutants of GPUs: those that are described, and convolutions there."""

from mutants.mutant import Mutant, cuda, host, python

_CUDA = "kernels/cuda/"

_DESCRIBED = [
    Mutant(
        "described-gpus-take-work",
        _CUDA + "gpus.c",
        "        return CUDA_ERROR_NOT_SUPPORTED; ",
        "        return CUDA_SUCCESS; ",
        host("test_device_described"),
    ),
    Mutant(
        "described-gpus-have-one-name-in-each-case",
        _CUDA + "gpus.c",
        "return *a == *b;",
        "return true;",
        host("test_device_described"),
    ),
    Mutant(
        "a-thread-leaves-all-that-it-entered",
        _CUDA + "gpus.c",
        "entered.context[--entered.n];",
        "entered.context[entered.n = 0];",
        host("test_device_described"),
    ),
    Mutant(
        "described-gpus-are-asked-by-libraries",
        _CUDA + "cublaslt.c",
        "if (hl_cuda_device_gpu(&device->base)) {",
        "if (!device) {",
        host("test_device_described"),
    ),
    Mutant(
        "workspaces-of-one-stream-alone",
        _CUDA + "open.c",
        "2 * hl_lt_workspace_bytes(base)",
        "hl_lt_workspace_bytes(base)",
        host("test_device_described"),
    ),
    Mutant(
        "described-gpus-train-in-float32",
        "python/hotloop/training/plans/precision.py",
        'return Choice(_MIXED[dtype] if named == "auto" else named)',
        'return Choice("32-true" if named == "auto" else named)',
        python("tests/train/test_described_gpus.py::test_summary"),
    ),
    Mutant(
        "data-lies-nowhere",
        "python/hotloop/training/run/planner.py",
        'predicted["data_bytes"] = self._data_bytes() if is_resident else 0',
        'predicted["data_bytes"] = 0',
        python("tests/train/test_described_gpus.py::test_summary"),
    ),
]

_CONVOLUTIONS = [
    Mutant(
        "padding-behind-is-read",
        _CUDA + "windows.h",
        "(uint32_t)at < (uint32_t)of.in[d]",
        "(uint32_t)at <= (uint32_t)of.in[d]",
        cuda("test_kernels_conv"),
    ),
    Mutant(
        "wide-runs-of-any-channels",
        _CUDA + "windows.h",
        "of.channel[1] % 8 == 0 && ",
        "",
        cuda("test_kernels_conv"),
    ),
    Mutant(
        "shares-of-pixels-meet",
        _CUDA + "matmul.cu",
        "first = z / p.groups * of.K;",
        "first = z / p.groups * (of.K - 1);",
        cuda("test_kernels_conv"),
    ),
    Mutant(
        "groups-have-the-first-ones-bias",
        _CUDA + "matmul.cu",
        "g * of.N * bias_bytes",
        "g * 0 * bias_bytes",
        cuda("test_kernels_conv"),
    ),
    Mutant(
        "classes-of-pixels-have-all-taps",
        _CUDA + "conv.c",
        "int64_t tap_step = stride / divisor;",
        "int64_t tap_step = divisor * stride / stride;",
        host("test_device_conv"),
    ),
    Mutant(
        "moved-pixels-are-a-product",
        _CUDA + "conv.c",
        "conv->window.before[d] == 0 && ",
        "",
        host("test_device_conv"),
    ),
    Mutant(
        "one-share-is-all-of-the-pixels",
        _CUDA + "conv.c",
        ".K = (windows.n_pixels + shares - 1) / shares,",
        ".K = windows.n_pixels / shares,",
        host("test_device_conv"),
    ),
]

_CUDNN = [
    Mutant(
        "weights-in-torchs-order-for-cudnn",
        _CUDA + "dnn_conv.c",
        "return !is_turned && !c->widens ? -1",
        "return !c->widens ? -1",
        host("test_device_cudnn"),
    ),
    Mutant(
        "float32-rounded-to-tf32",
        _CUDA + "dnn_conv.c",
        "conv->operand == CUDNN_DATA_FLOAT && !conv->tf32",
        "false",
        host("test_device_cudnn"),
    ),
    Mutant(
        "convolutions-that-vary-in-deterministic-plans",
        _CUDA + "dnn_plans.c",
        "if (deterministic) bad |=",
        "if (!question) bad |=",
        host("test_device_cudnn"),
    ),
    Mutant(
        "cudnn-is-asked-again-and-again",
        _CUDA + "dnn_plans.c",
        "if (*out_answer) return HL_OK;",
        "if (!dnn) return HL_OK;",
        host("test_device_cudnn"),
    ),
    Mutant(
        "a-shift-for-each-element",
        _CUDA + "dnn_conv.c",
        "{HAS_SHIFT, CUDNN_POINTWISE_ADD, true, true}",
        "{HAS_SHIFT, CUDNN_POINTWISE_ADD, true, false}",
        host("test_device_cudnn"),
    ),
    Mutant(
        "weight-gradients-with-work-behind-them",
        _CUDA + "conv_dnn.c",
        'CONV(CONV_WEIGHT_GRAD, "conv_weight_grad", NULL)',
        'CONV(CONV_WEIGHT_GRAD, "conv_weight_grad", hl_dnn_fusions)',
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-over-the-squares",
        _CUDA + "conv_dnn.c",
        ".at.squares = hl_cuda_scratch(state->sums + state->sums_bytes)",
        ".at.squares = hl_cuda_scratch(state->sums)",
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-within-the-weight",
        _CUDA + "conv_dnn.c",
        "char *sums = (char *)place->launch->scratch + state->sums;",
        "char *sums = (char *)place->launch->scratch;",
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-on-a-turing",
        _CUDA + "dnn_conv.c",
        "if (facts->arch < OLDEST_SUMS)",
        "if (facts->arch < 0)",
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-that-save-nothing",
        _CUDA + "dnn_conv.c",
        "(double)hl_type_bytes(type) < facts->bytes_per_us * LEAST_US",
        "(double)hl_type_bytes(type) < 0",
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-where-nobody-knows-how-fast",
        _CUDA + "dnn_conv.c",
        "else if (facts->bytes_per_us <= 0)",
        "else if (facts->bytes_per_us < 0)",
        host("test_device_cudnn"),
    ),
    Mutant(
        "sums-without-nvrtc",
        _CUDA + "dnn_conv.c",
        "else if (!hl_cuda_can_compile(device))",
        "else if (!device)",
        host("test_device_cudnn"),
    ),
    Mutant(
        "no-room-for-plans-to-compare-with",
        _CUDA + "conv_dnn.c",
        "if (bare_bytes > state->workspace_bytes) state->workspace_bytes = bare_bytes;",
        "(void)bare_bytes;",
        host("test_device_cudnn"),
    ),
    Mutant(
        "refused-convolutions-are-compiled-first",
        _CUDA + "dnn_plans.c",
        "if (!is_known) HL_TRY(hl_problem_recall(base, problem));",
        "(void)is_known;",
        host("test_device_cudnn"),
    ),
    Mutant(
        "a-handle-for-a-description",
        _CUDA + "cudnn.c",
        "description ? start_described(dnn, description) : dnn->call",
        "dnn->call",
        host("test_device_cudnn"),
    ),
]

MUTANTS = [*_DESCRIBED, *_CONVOLUTIONS, *_CUDNN]
