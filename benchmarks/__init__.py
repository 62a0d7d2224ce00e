"""hotloop beside PyTorch on one machine, in one run: ``make bench``.

Each side of a workload is a process of its own (worker_hotloop.py, worker_torch.py) that makes its
model and data, warms up, and then works in slices of about a second, each when it is told to. The
sides take their slices in turn, several rounds, so that a machine that grows slower does so for
all of them; only ratios of neighbouring slices are shown. workloads.py says what is trained.
"""
