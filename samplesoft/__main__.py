"""Entry point of the command ``samplesoft`` and of ``python -m samplesoft``."""

import os
import sys

from samplesoft._interrupts import end_at_interrupts, ignore_interrupts


def main() -> int:
    """Run the command line, and return its exit status; end the process at Ctrl-C or SIGTERM."""
    end_at_interrupts()

    # Set this before NumPy is imported. The products in ``verify`` are so small that, whenever
    # another process uses a core, BLAS threads wait for each other longer than they compute.
    if sys.argv[1:2] == ["verify"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from samplesoft.cli import main

    status = main()
    ignore_interrupts()
    return status


if __name__ == "__main__":
    sys.exit(main())
