"""Tools for the notebooks: automatic checks of exercises, and a common style of plots.

Instructors write the notebooks without solutions with ``python -m samplesoft.teaching student``.
"""

from __future__ import annotations

from samplesoft.teaching.exercises import BLACK as BLACK
from samplesoft.teaching.exercises import BLUE as BLUE
from samplesoft.teaching.exercises import GREEN as GREEN
from samplesoft.teaching.exercises import ORANGE as ORANGE
from samplesoft.teaching.exercises import RED as RED
from samplesoft.teaching.exercises import check, set_up_plots
from samplesoft.teaching.students import write_student_version

__all__ = ["check", "set_up_plots", "write_student_version"]
