"""``python -m hotloop``: the command line."""

import sys

from hotloop.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
