"""Runs a script as a command line does, but in this process; and reads the table it has written."""

import csv
import io
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import matplotlib
from matplotlib import pyplot as plt


def run_script(script, *arguments):
    """Return what a script prints; modules of its folder are forgotten afterwards."""
    folder, printed, known = Path(script).parent, io.StringIO(), set(sys.modules)
    with (
        mock.patch.object(sys, "argv", [str(script), *map(str, arguments)]),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        redirect_stdout(printed),
        warnings.catch_warnings(),
        matplotlib.rc_context(),
    ):
        warnings.simplefilter("ignore")  # which are no errors on a command line
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            plt.close("all")
            for name in set(sys.modules) - known:
                if folder == Path(getattr(sys.modules[name], "__file__", None) or ".").parent:
                    del sys.modules[name]
    return printed.getvalue()


def write_interactions(folder, lists, num_train):
    """Write the first items of each list as ``train.txt``, and the others as ``test.txt``."""
    for part, own in (("train", slice(num_train)), ("test", slice(num_train, None))):
        lines = [f"{u} " + " ".join(map(str, items[own])) for u, items in enumerate(lists)]
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")


def read_rows(path):
    """Return the rows of a CSV file that begins with a note."""
    note, *lines = path.read_text(encoding="utf-8").splitlines()
    assert note.startswith("# ")
    return list(csv.DictReader(lines))
