"""The command line: what it prints, its exit status, and its messages for bad input."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import samplesoft
import samplesoft.commands.verify as verify_command
from samplesoft._jit import COMPILES
from samplesoft.bias.exact import exact_bias_of
from samplesoft.cli import main
from samplesoft.samplers import SAMPLERS
from samplesoft.verification import verify as verify_module

QUICK = ["--trials", "1500", "--num-sampled", "5,20"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("input")
    rng = np.random.default_rng(0)
    n, d, batch = 30, 4, 3
    h = rng.standard_normal((batch, d))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    c = rng.standard_normal((n, d))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    labels = np.array([1, 0, n - 1])
    np.savez(folder / "e.npz", h=h, class_embeddings=c, labels=labels, counts=np.arange(n) + 1)
    np.save(folder / "logits.npy", 2.0 * h @ c.T)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "nan.npy", np.full((3, n), np.nan))
    np.savez(folder / "short.npz", h=h, class_embeddings=c[:, :3], labels=labels)
    np.savez(folder / "no_labels.npz", h=h, class_embeddings=c)
    (folder / "text.txt").write_text("the cat sat on the mat\nthe dog ran\n" * 50)
    (folder / "empty.txt").write_text("\n")
    (folder / "broken.npz").write_bytes(b"PK not an archive")
    (folder / "broken.xz").write_bytes(b"not xz")
    (folder / "w2v.txt").write_text("2 3\na 1 2 3\nb 1 2\n")
    return folder


@pytest.mark.slow
def test_embeddings(files, tmp_path, capsys):
    out, figure = tmp_path / "report.json", tmp_path / "report.png"
    files_of_rows = ["--csv", str(tmp_path / "r.csv")]
    files_of_rows += ["--html", str(tmp_path / "r.html")]
    args = ["verify", "--embeddings", str(files / "e.npz"), "--tau", "3", "--num-features", "50"]
    assert main([*args, *QUICK, "--json", str(out), "--figure", str(figure), *files_of_rows]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for word in ("uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff", "agrees"):
        assert word in text
    values = json.loads(out.read_text())
    assert values["ok"] is True
    assert values["settings"]["tau"] == 3.0
    assert len(values["rows"]) == 6 * 2 * 3
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "r.csv").read_text().count("\n") == 1 + 6 * 2 * 3
    assert (tmp_path / "r.html").read_text().count("<table>") == 4
    names = ["r.csv", "r.html", "report.json", "report.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_logits_leave_out_what_they_cannot_give(files, capsys):
    labels = ["--labels", str(files / "labels.npy")]
    assert main(["verify", "--logits", str(files / "logits.npy"), *labels, *QUICK]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "samplers left out: unigram (needs class counts)" in text
    assert ", rff (needs contexts and class vectors)" in text
    for word in ("Gradient in h", "mse", "Class vectors"):
        assert word not in text


def test_a_newcomer_reads_one_table_and_a_verdict(files, capsys):
    args = ["verify", "--embeddings", str(files / "e.npz"), "--samplers", "uniform,unigram", *QUICK]
    assert main(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert len([line for line in lines if line.startswith("-----")]) == 1
    assert lines[-1] == "All figures: --details, or to_text(details=True)."
    assert main([*args, "--details"]) == 0
    text = capsys.readouterr().out
    assert len([line for line in text.splitlines() if line.startswith("-----")]) == 7
    assert "effective_sample_size" in text and "--details" not in text


def test_few_trials_pass_and_say_what_they_could_not_test(files, capsys):
    args = ["verify", "--embeddings", str(files / "e.npz"), "--samplers", "uniform"]
    assert main([*args, "--trials", "300", "--num-sampled", "2", "--tau", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "that could be tested;" in text and "could not, for lack of effective draws" in text


def test_legend_counts_the_block_that_is_shown(files, capsys):
    args = ["verify", "--embeddings", str(files / "e.npz"), "--samplers", "uniform", *QUICK]
    assert main([*args, "--wrt", "h", "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Gradient in h: 12 coordinates" in text
    assert "Gradient in the logits" not in text


def test_a_reader_that_leaves_is_no_error(files, tmp_path):
    args = ["verify", "--embeddings", str(files / "e.npz"), "--samplers", "uniform", *QUICK]
    command = [sys.executable, "-m", "samplesoft", *args, "--json", str(tmp_path / "r.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        # on a slow machine lines of progress may stand there
        errors = process.stderr.read()
        assert b"Traceback" not in errors and b"BrokenPipe" not in errors
    assert process.returncode == 0
    assert json.loads((tmp_path / "r.json").read_text())["ok"] is True


def test_overflow_is_bad_input(monkeypatch, capsys):
    def overflow(options):
        raise OverflowError("too large")

    monkeypatch.setattr("samplesoft.commands.verify.run", overflow)
    assert main(["verify"]) == 2
    assert "error: too large" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["reject", "poisson", "jackknife"])
def test_corpus_and_schemes(files, scheme, capsys):
    args = ["verify", "--corpus", str(files / "text.txt"), "--scheme", scheme, "--wrt", "logits"]
    assert main([*args, *QUICK, "--samplers", "uniform,unigram", "--seed", "3"]) == 0
    assert f"scheme: {scheme};" in capsys.readouterr().out


@pytest.mark.parametrize("norm, tau", [(1.0, 10.0), (2.0, 1.0)])
def test_tau_is_10_for_vectors_of_norm_1_alone(norm, tau, files, tmp_path, capsys):
    arrays = dict(np.load(files / "e.npz"))
    arrays["class_embeddings"] *= norm
    np.savez(tmp_path / "e.npz", **arrays)
    assert main(["verify", "--embeddings", str(tmp_path / "e.npz"), *QUICK, "--trials", "500"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"tau: {tau}" in text
    assert ("rff (needs vectors of norm 1)" in text) is (norm != 1.0)


def test_wrong_exact_values_exit_1(files, monkeypatch, capsys):
    def twin(inputs):
        return exact_bias_of(replace(inputs, q=np.full((1, 30), 1 / 30)))

    monkeypatch.setattr(verify_module, "exact_bias_of", twin)
    args = ["verify", "--embeddings", str(files / "e.npz"), "--samplers", "unigram", *QUICK]
    assert main([*args, "--tau", "2"]) == 1
    assert "DISAGREES" in capsys.readouterr().out


def test_module_and_help():
    for args in (["--help"], ["verify", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "samplesoft", *args], capture_output=True, text=True, check=True
        )
        assert "usage: samplesoft" in done.stdout
    text = "".join(done.stdout.split())
    for word in (",".join(SAMPLERS), "norm1", "1-(1-q_j)^m"):
        assert word in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"samplesoft {samplesoft.__version__}\n"


BAD = {
    "command": ([], "required: command"),
    "option": (["verify", "--nope"], "--nope"),
    "two inputs": (["verify", "--corpus", "a", "--logits", "b"], "not allowed with"),
    "no labels": (["verify", "--logits", "{f}/logits.npy"], "--logits needs --labels"),
    "no logits": (["verify", "--labels", "{f}/labels.npy"], "--labels needs --logits"),
    "sampler": (["verify", "--samplers", "unifrom"], "--samplers: expected names out of uniform"),
    "sampler twice": (["verify", "--samplers", "uniform,uniform"], "--samplers"),
    "wrt": (["verify", "--wrt", "W"], "--wrt: expected names out of logits, h"),
    "m 0": (["verify", "--num-sampled", "10,0"], "--num-sampled"),
    "m of 20 digits": (
        ["verify", "--num-sampled", "1" + 19 * "0"],
        "at most 1000000000000000 draws",
    ),
    "m of 31 digits": (
        ["verify", "--num-sampled", "1" + 30 * "0"],
        "at most 1000000000000000 draws",
    ),
    "m float": (["verify", "--num-sampled", "1.5"], "--num-sampled"),
    "m twice": (["verify", "--num-sampled", "10,10"], "--num-sampled"),
    "checkpoint and corpus": (["verify", "--corpus", "a", "--checkpoint", "b"], "not allowed with"),
    "no checkpoint": (["verify", "--checkpoint", "{f}/absent.npz"], "no such file"),
    "another npz": (["verify", "--checkpoint", "{f}/e.npz"], "must be a whole checkpoint"),
    "tau of checkpoint": (
        ["verify", "--checkpoint", "{f}/e.npz", "--tau", "2"],
        "--tau has no effect with --checkpoint",
    ),
    "m for jackknife": (["verify", "--num-sampled", "1", "--scheme", "jackknife"], "at least 2"),
    "scheme": (["verify", "--scheme", "other"], "--scheme"),
    "tau": (["verify", "--tau", "-1"], "--tau"),
    "nu": (["verify", "--nu", "nan"], "--nu"),
    "features": (["verify", "--num-features", "0"], "--num-features"),
    "trials": (["verify", "--trials", "1"], "--trials: expected an integer of at least 2"),
    "seed": (["verify", "--seed", "-1"], "--seed"),
    "examples": (["verify", "--examples", "0"], "--examples"),
    "json": (["verify", "--json", "{f}/absent/x.json"], "--json must name a file"),
    "figure": (["verify", "--figure", "{f}/absent/x.png"], "--figure must name a file"),
    "html": (["verify", "--html", "{f}/absent/x.html"], "--html must name a file"),
    "one file": (
        ["verify", "--json", "{f}/x.png", "--figure", "{f}/../{f.name}/x.png"],
        "--json and --figure must name two files",
    ),
    "csv and html": (
        ["verify", "--csv", "{f}/x", "--html", "{f}/x"],
        "--html and --csv must name two files",
    ),
    "csv": (["verify", "--csv", "{f}/absent/x.csv"], "--csv must name a file"),
    "corpus that is a folder": (["verify", "--corpus", "{f}"], "cannot be read"),
    "figure format": (["verify", "--figure", "{f}/x.bmp"], "--figure must end in .png"),
    "no corpus": (["verify", "--corpus", "{f}/absent.txt"], "no such file"),
    "no words": (["verify", "--corpus", "{f}/empty.txt"], "must hold words"),
    "corpus xz": (["verify", "--corpus", "{f}/broken.xz"], "cannot be read"),
    "npz": (["verify", "--embeddings", "{f}/broken.npz"], "must be a file of plain arrays"),
    "dimensions": (["verify", "--embeddings", "{f}/short.npz"], "same dimension d"),
    "arrays": (["verify", "--embeddings", "{f}/no_labels.npz"], "add labels"),
    "vectors as text": (
        ["verify", "--embeddings", "{f}/w2v.txt"],
        "must be a file of plain arrays",
    ),
    "nan": (["verify", "--logits", "{f}/nan.npy", "--labels", "0,1,2"], "must be finite"),
    "label range": (["verify", "--logits", "{f}/logits.npy", "--labels", "0,1,30"], "0..29"),
    "label count": (["verify", "--logits", "{f}/logits.npy", "--labels", "0,1"], "shape (3,)"),
    "label text": (["verify", "--logits", "{f}/logits.npy", "--labels", "a,b"], "labels"),
    **{
        f"{option} of logits": (
            ["verify", "--logits", "{f}/logits.npy", "--labels", "0,1,2", option, "4"],
            f"{option} has no effect with --logits",
        )
        for option in ("--tau", "--nu", "--num-features")
    },
    "needs vectors": (
        ["verify", "--logits", "{f}/logits.npy", "--labels", "0,1,2", "--samplers", "rff"],
        "--samplers",
    ),
    "needs blocks": (
        ["verify", "--logits", "{f}/logits.npy", "--labels", "0,1,2", "--wrt", "h"],
        "--corpus or --embeddings",
    ),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD)
def test_bad_input_exits_2_with_a_message(args, message, files, capsys):
    assert main([arg.format(f=files) for arg in args]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert all(line.startswith("- input: ") for line in captured.out.splitlines())


def test_missing_standard_library_names_the_options(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    assert main(["verify"]) == 2
    message = capsys.readouterr().err
    for option in ("--corpus", "--embeddings", "--logits"):
        assert option in message


def test_interrupt_and_errors_of_the_system(monkeypatch, capsys):
    def stops(options):
        raise KeyboardInterrupt

    def fails(options):
        open("absent/file")

    monkeypatch.setattr("samplesoft.commands.verify.run", stops)
    assert main(["verify"]) == 130
    assert capsys.readouterr().err == "samplesoft verify: interrupted\n"
    monkeypatch.setattr("samplesoft.commands.verify.run", fails)
    assert main(["verify"]) == 2
    assert "error: 'absent/file': No such file or directory; check the" in capsys.readouterr().err


_AFTER_REHEARSAL = """
from samplesoft.bias import monte_carlo
from samplesoft.bias.with_replacement import laplace
from samplesoft.verification.verify import verify
kernels = laplace.sums_at_nodes, laplace._add_atom_integrals, monte_carlo._run_block
before = [str(kernel.signatures) for kernel in kernels]
c = np.random.default_rng(0).normal(size=(5000, 3))
logits, vectors = c.sum(axis=1)[None], {"h": np.ones((1, 3)), "class_embeddings": c}
verify(logits, [1], {"q": np.full(5000, 1 / 5000)}, 10, num_trials=50, **vectors)
assert before == [str(kernel.signatures) for kernel in kernels] and all(before), before
"""


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
def test_the_rehearsal_of_verify_compiles_what_it_needs():
    code = verify_command._COMPILE_SCRIPT + _AFTER_REHEARSAL
    command = [sys.executable, "-c", code, "negatives"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
@pytest.mark.parametrize("state", ["new", "known", "no cache"])
def test_another_process_compiles_only_what_is_not_known(state, tmp_path, monkeypatch):
    started = []

    class Process(contextlib.nullcontext):
        def __init__(self, command, **_):
            super().__init__(self)
            started.append(command)

        def kill(self):
            started.append("killed")

    stats = SimpleNamespace(cache_path=None if state == "no cache" else str(tmp_path))
    monkeypatch.setattr(verify_command, "sums_at_nodes", SimpleNamespace(stats=stats))
    monkeypatch.setattr(verify_command, "num_threads", lambda: 2)
    monkeypatch.setattr(verify_command.subprocess, "Popen", Process)
    if state == "known":
        (tmp_path / "laplace.sums_at_nodes-1.py311.nbi").write_bytes(b"")
    with pytest.raises(KeyError), verify_command._compile_ahead("masked"):
        raise KeyError
    assert bool(started) == (state == "new")
    assert not started or (started[0][-1], started[1]) == ("masked", "killed")
