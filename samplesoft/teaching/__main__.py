"""The command for instructors: ``python -m samplesoft.teaching student``."""

import argparse
import sys

from samplesoft.teaching.students import write_student_version


def main() -> int:
    """Write the notebooks without solutions, as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m samplesoft.teaching",
        description="Write the notebooks without solutions, the assignment, and the scripts that "
        "both import, to a new folder for students.",
    )
    parser.add_argument("target", help="the folder to write, such as `student`")
    parser.add_argument(
        "--notebooks", default="notebooks", help="the folder of the notebooks (default: notebooks)"
    )
    arguments = parser.parse_args()

    try:
        target = write_student_version(arguments.target, arguments.notebooks)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")

    print(f"{target}: {len([*target.glob('notebooks/*.ipynb')])} notebooks without solutions,")
    print("the assignment in notebooks/assignment, and what they import in figures.")

    return 0


if __name__ == "__main__":
    sys.exit(main())
