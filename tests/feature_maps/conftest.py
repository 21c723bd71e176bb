"""The modules of figures/ that are no scripts, such as the language model, can be imported."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "figures"))
