"""Machine, versions and GPU as one line of JSON, by the library as it is built now."""

from __future__ import annotations

import json
import sys

from benchmarks.__main__ import describe_machine
from benchmarks.gpu import describe_gpu


def main() -> int:
    """Prints the line, or why there is no GPU."""
    try:
        print(json.dumps({"machine": describe_machine(), "gpu": describe_gpu()}))
    except RuntimeError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
