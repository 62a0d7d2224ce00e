/* Loaded before PyTorch, it answers MKL's question whether the processor is Intel's with yes: MKL
 * takes its AVX-512 path only then. So PyTorch can be measured without being held back on other
 * processors. A benchmark's tool: it is no part of hotloop. */
int mkl_serv_intel_cpu_true(void);
int mkl_serv_intel_cpu_true(void)
{
    return 1;
}

int mkl_serv_intel_cpu(void);
int mkl_serv_intel_cpu(void)
{
    return 1;
}
