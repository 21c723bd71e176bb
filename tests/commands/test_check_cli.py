"""``samplesoft check`` on functions in a file of the user's."""

import json

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
    assert "right: `masked`" in " ".join(capsys.readouterr().out.split())
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
