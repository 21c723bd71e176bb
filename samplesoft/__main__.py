"""The program ``samplesoft``, which is ``python -m samplesoft`` too."""

import sys

from samplesoft._interrupts import end_at_interrupts, ignore_interrupts


def main() -> int:
    """Run the command line of the process, and end at an interrupt from the first import on."""
    end_at_interrupts()
    from samplesoft.cli import main

    status = main()
    ignore_interrupts()
    return status


if __name__ == "__main__":
    sys.exit(main())
