"""``samplesoft check`` on functions in a file of the user's."""

import importlib
import json
import re
import sys

import pytest

from samplesoft.cli import main

SOURCE = """
import numpy as np

q = np.array([0.5, 0.2, 0.1, 0.1, 0.1])


def right(class_embeddings, h, labels, num_sampled, seed, scale=1.0):
    ids = np.random.default_rng(seed).choice(len(q), (len(h), num_sampled), p=q)
    o = h @ class_embeddings.T
    own = np.take_along_axis(o, labels[:, None], axis=1)[:, 0]
    drawn = np.take_along_axis(o - np.log(scale * num_sampled * q), ids, axis=1)
    drawn[ids == labels[:, None]] = -np.inf
    return np.logaddexp(own, np.logaddexp.reduce(drawn, axis=1)) - own


def wrong(*given):
    return right(*given, scale=1.0 / given[3])
"""


@pytest.fixture(autouse=True)
def losses(tmp_path, monkeypatch):
    (tmp_path / "losses_of_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(name, *options):
    return main(["check", f"losses_of_mine:{name}", "--proposal", "losses_of_mine:q", *options])


def test_exit_status_report_and_files(tmp_path, capsys):
    files = "--json", "report.json", "--figure", "report.png", "--html", "report.html"
    few = "--calls", "4096"
    assert run("right", "--scheme", "masked", *few, *files) == 0
    assert "The loss is right. Its scheme is `masked`" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "report.json").read_text())["scheme"] == "masked"
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "<dt>scheme</dt><dd>masked</dd>" in (tmp_path / "report.html").read_text()
    assert run("right", "--scheme", "candidate", *few) == 1
    assert run("wrong", *few) == 1
    assert "log m is left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["losses_of_mine", "--proposal", "uniform"], "must be written module:name"),
        (["no_such_module:f", "--proposal", "uniform"], "a module that can be imported"),
        (["losses_of_mine:f", "--proposal", "uniform"], "must name something in"),
        (["losses_of_mine:right", "--proposal", "unigram"], "--proposal"),
        (["losses_of_mine:q", "--proposal", "uniform"], "`loss` must be callable"),
        (["losses_of_mine:right", "--proposal", "uniform", "--json", "no/such"], "--json"),
        (
            ["losses_of_mine:right", "--proposal", "uniform", "--html", "no/such"],
            "--html must name",
        ),
        (
            ["losses_of_mine:right", "--proposal", "uniform", "--json", "x", "--html", "x"],
            "--json and --html must name two files",
        ),
    ],
)
def test_bad_usage(arguments, words, capsys):
    assert main(["check", *arguments]) == 2
    assert words in capsys.readouterr().err


BROKEN = {  # what a module holds, and what is said of it
    "def loss(c, h, labels, m, seed:\n    return h": "SyntaxError",
    "import no_such_library": "No module named 'no_such_library'.* line 1; install",
    "import os\n\nraise RuntimeError('no device')": "RuntimeError: no device in broken.py, line 3",
    "import sys\nsys.exit(0)": "SystemExit: 0 in broken.py, line 2",
    "import numpy\nnumpy.no_such_name": "AttributeError: .*no_such_name.* in broken.py, line 2",
    "class Stop(BaseException): pass\nraise Stop": "Stop in broken.py, line 2",
    "x = 1\0": "(ValueError|SyntaxError): ",
}


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("as_proposal", [False, True])
def test_a_module_that_cannot_be_imported(source, as_proposal, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(source)
    importlib.invalidate_caches()
    given = ["losses_of_mine:right", "--proposal", "broken:q"]
    given = given if as_proposal else ["broken:loss", "--proposal", "uniform"]
    assert main(["check", *given]) == 2
    said = capsys.readouterr().err
    assert re.search(BROKEN[source], said) and "Traceback" not in said
    assert main(["check", *given, "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


RAISING = {  # the line of a loss, and what is said of it
    "raise RuntimeError('no device')": "RuntimeError: no device in raising.py, line 3 ",
    "return [0.0][int(labels[0]) + 99]": "IndexError: .*in raising.py, line 3 ",
    "raise FloatingPointError('overflow')": "FloatingPointError: overflow in raising.py, line 3 ",
    "return np.linalg.inv(np.zeros((2, 2)))": "LinAlgError: .*in raising.py, line 3 ",
    "raise SystemExit(0)": "SystemExit: 0 in raising.py, line 3 ",
    "raise BrokenPipeError('gone')": "BrokenPipeError: gone in raising.py, line 3 ",
    "return helper(h)": "KeyError: 'key' in raising.py, line 6 .loss > helper",
    "assert False": "AssertionError in raising.py, line 3 ",
    "raise StopIteration": "StopIteration in raising.py, line 3 ",
    "return None": "array of floats, got NoneType",
    "return 'text'": "array of floats, got str",
    "return [[1.0, 2.0], [1.0]], h": "array of floats, got list",
    "return Tensor()": "got Tensor, which numpy.asarray does not take: requires grad",
    "return h[:, :2]": "must return losses of shape",
    "return h[:, 0] * np.nan": "must return finite losses",
    "return h[:3, 0]": "must return losses of shape",
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("line", RAISING)
def test_a_loss_that_could_not_be_checked(line, tmp_path, monkeypatch, capsys):
    source = f"""import numpy as np
def loss(class_embeddings, h, labels, num_sampled, seed):
    {line}
def helper(h):
    # what it calls may raise too
    return {{}}["key"]
class Tensor:
    def __array__(self, *given, **named): raise RuntimeError("requires grad")
"""
    monkeypatch.delitem(sys.modules, "raising", raising=False)
    (tmp_path / "raising.py").write_text(source)
    importlib.invalidate_caches()
    assert main(["check", "raising:loss", "--proposal", "uniform"]) == 2
    said = capsys.readouterr()
    assert re.search(RAISING[line], said.err) and "Traceback" not in said.err
    assert not said.out


def test_an_interrupt_in_a_loss(monkeypatch, capsys):
    def loss(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("losses_of_mine.right", loss)
    assert run("right") == 130


@pytest.mark.parametrize("line", ["raise RuntimeError('no table')", "return {}[n]"])
def test_a_proposal_that_raises(line, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "proposals", raising=False)
    (tmp_path / "proposals.py").write_text(f"def q(n):\n    {line}\n")
    importlib.invalidate_caches()
    assert main(["check", "losses_of_mine:right", "--proposal", "proposals:q"]) == 2
    assert "Error: " in (said := capsys.readouterr().err) and "proposals.py, line 2" in said


def test_what_a_loss_prints_is_not_part_of_the_report(tmp_path, monkeypatch, capsys):
    source = "import losses_of_mine as mine, numpy as np\nprint('module')\nnp.seterr(all='raise')\n"
    source += "def loss(*given):\n    print('printed')\n    return mine.right(*given)\n"
    monkeypatch.delitem(sys.modules, "printing", raising=False)
    (tmp_path / "printing.py").write_text(source)
    importlib.invalidate_caches()
    given = ["printing:loss", "--proposal", "losses_of_mine:q", "--calls", "64"]
    assert main(["check", *given]) == 0
    said = capsys.readouterr()
    assert (
        "The loss is right" in said.out and "printed" not in said.out and "module" not in said.out
    )
    assert "printed" in said.err and "module" in said.err


def test_an_error_of_samplesoft_itself_is_no_verdict(monkeypatch, capsys):
    def broken(*given):
        raise RuntimeError("a mistake")

    monkeypatch.setattr("samplesoft.checking.families.known_candidates", broken)
    assert run("right") == 2
    said = capsys.readouterr().err
    assert "in samplesoft itself" in said and "Traceback" in said
