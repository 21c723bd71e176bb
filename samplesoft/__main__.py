"""``python -m samplesoft``."""

import sys

from samplesoft.cli import main

if __name__ == "__main__":
    sys.exit(main())
