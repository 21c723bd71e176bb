"""The program ``samplesoft``, which is ``python -m samplesoft`` too."""

import os
import sys

from samplesoft._interrupts import end_at_interrupts, ignore_interrupts


def main() -> int:
    """Run the command line of the process, and end at an interrupt from the first import on."""
    end_at_interrupts()
    # Before NumPy is loaded: its threads wait for each other, and in products as small as those of
    # ``verify`` that takes longer than the work wherever something else has a core.
    if sys.argv[1:2] == ["verify"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from samplesoft.cli import main

    status = main()
    ignore_interrupts()
    return status


if __name__ == "__main__":
    sys.exit(main())
