"""Entry point of the program ``samplesoft`` and of ``python -m samplesoft``."""

import os
import sys

from samplesoft._interrupts import end_at_interrupts, ignore_interrupts


def main() -> int:
    """Run the command line; handle interrupts from the first import on."""
    end_at_interrupts()
    # Before NumPy is imported: the products in ``verify`` are so small that BLAS threads wait for
    # each other longer than they compute, whenever another process uses a core.
    if sys.argv[1:2] == ["verify"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from samplesoft.cli import main

    status = main()
    ignore_interrupts()
    return status


if __name__ == "__main__":
    sys.exit(main())
