"""``samplesoft train --sampler auto``: chosen once, and then as if the user had named it."""

import json

import numpy as np
import pytest
from run_files import assert_same_end

from samplesoft.cli import main
from samplesoft.commands import auto
from samplesoft.training import RetrievalTask, read_checkpoint
from samplesoft.tuning.pilot import Choice

UNIGRAM = {"loss": "sampled-masked", "sampler": "unigram", "num_sampled": 7, "shared": True}
CLUSTERS = {"loss": "sampled-masked", "sampler": "clusters", "num_sampled": 5, "shared": False}
FULL = {"loss": "full", "sampler": None, "num_sampled": None, "shared": False}
BOTH = ["--sampler", "auto", "--num-sampled", "auto"]


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """Return a file of what users have taken: items that are near each other."""
    path, rng = tmp_path_factory.mktemp("items") / "train.txt", np.random.default_rng(0)
    rows = ((k % 40 + rng.choice(8, 5, replace=False)) % 40 for k in range(200))
    path.write_text("".join(f"{k} {' '.join(map(str, r))}\n" for k, r in enumerate(rows)))
    return str(path)


@pytest.fixture
def chosen(monkeypatch):
    """Return a function that lets a choice be found, and a list of what was asked for."""
    asked = []

    def let(settings):
        def choose(inputs, *wanted, **options):
            asked.append((*wanted, options))
            assert inputs["h"].shape[1] == inputs["class_embeddings"].shape[1]
            return Choice(settings, "Take it: it is the best.")

        monkeypatch.setattr(auto, "choose", choose)
        return asked

    return let


def items(taken, out, *options):
    more = ["--embedding-dim", "6", "--batch", "20", "--epochs", "2", "--out", str(out)]
    return main(["train", "items", "--train", taken, *more, *options])


def named(settings):
    """Return the options of settings."""
    options = ["--loss", settings["loss"]]
    if settings["sampler"] is None:
        return options
    options += ["--sampler", settings["sampler"], "--num-sampled", str(settings["num_sampled"])]
    return [*options, "--shared" if settings["shared"] else "--no-shared"]


@pytest.mark.parametrize("settings", [UNIGRAM, CLUSTERS, FULL], ids=lambda s: s["loss"])
def test_the_run_is_that_of_the_settings_by_name(settings, taken, tmp_path, chosen, capsys):
    asked, results = chosen(settings), tmp_path / "results.json"
    assert items(taken, tmp_path / "auto", *BOTH, "--json", str(results)) == 0
    text = capsys.readouterr().out
    assert "- --sampler and --num-sampled auto: Take it: it is the best.\n" in text
    assert "By auto: Take it" in text
    (wanted,) = asked
    assert wanted[:3] == ("sampled-masked", "auto", "auto") and wanted[3]["shared"] is None
    assert items(taken, tmp_path / "named", *named(settings)) == 0
    assert_same_end(tmp_path / "auto", tmp_path / "named")
    configs = [read_checkpoint(tmp_path / n / "best.npz").config for n in ("auto", "named")]
    assert configs[0] == configs[1]
    assert settings.items() <= configs[0]["task"].items()
    verdict = "Take it: it is the best."
    found = json.loads(results.read_text())["auto"]
    assert found == {"chosen": ["sampler", "num_sampled"], "verdict": verdict}
    options = json.loads((tmp_path / "auto" / "options.json").read_text())
    kept = {name: value for name, value in settings.items() if value is not None}
    assert (kept if settings["sampler"] else {"loss": "full"}).items() <= options.items()
    assert options["verdict"] == verdict
    other = named({**UNIGRAM, "num_sampled": 8})  # a wrong twin
    assert items(taken, tmp_path / "other", *other) == 0
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "auto", tmp_path / "other")


@pytest.mark.parametrize("settings", [UNIGRAM, FULL], ids=lambda s: s["loss"])
def test_resuming_does_not_choose_again(settings, taken, tmp_path, chosen, monkeypatch, capsys):
    chosen(settings)
    assert items(taken, tmp_path / "whole", *BOTH) == 0
    assert items(taken, tmp_path / "parts", *BOTH, "--epochs", "1") == 0
    monkeypatch.setattr(auto, "choose", None)
    monkeypatch.setattr(auto, "_train", None)
    capsys.readouterr()
    assert items(taken, tmp_path / "parts", *BOTH, "--resume") == 0
    assert "By auto: Take it" in capsys.readouterr().out
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    short = ["train", "items", "--out", str(tmp_path / "parts"), "--resume", "--epochs", "3"]
    assert main(short) == 0
    assert items(taken, tmp_path / "named", *named(UNIGRAM), "--epochs", "1") == 0
    assert items(taken, tmp_path / "named", *BOTH, "--resume") == 2
    assert "--sampler auto is for a new run, and the one in" in capsys.readouterr().err


def test_one_of_both_and_what_else_is_given(taken, tmp_path, chosen):
    asked = chosen(CLUSTERS | {"sampler": "rff"})
    more = ["--sampler", "rff", "--num-features", "8", "--nu", "3", "--update-every", "2"]
    assert items(taken, tmp_path / "a", *more, "--num-sampled", "auto", "--no-shared") == 0
    assert asked[0][:3] == ("sampled-masked", "rff", "auto")
    assert {"nu": 3.0, "num_features": 8, "shared": False}.items() <= asked[0][3].items()
    task = read_checkpoint(tmp_path / "a" / "best.npz").config["task"]
    assert {"nu": 3.0, "num_features": 8, "update_every": 2}.items() <= task.items()
    assert items(taken, tmp_path / "b", "--num-sampled", "9", "--sampler", "auto") == 0
    assert asked[1][:3] == ("sampled-masked", "auto", 9)
    assert items(taken, tmp_path / "a", "--resume", "--epochs", "3") == 0
    chosen(FULL)
    assert items(taken, tmp_path / "c", *more, "--num-sampled", "auto") == 0
    assert items(taken, tmp_path / "c", "--resume", "--epochs", "3") == 0


REFUSED = {
    "--loss nce": "must not be 'auto' with loss='nce'",
    "--loss full": "--sampler, --num-sampled have no effect with --loss full, which draws",
    "--num-certain 3": "--num-certain has no effect with --sampler auto, which measures draws",
    "--nu 3": "--nu has no effect with --sampler auto; leave it out",
    "--update-every 3": "--update-every has no effect with --sampler auto",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together_is_refused_before_the_work(
    options, taken, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(RetrievalTask, "__init__", None)
    assert items(taken, tmp_path / "run", *BOTH, *options.split()) == 2
    assert REFUSED[options] in capsys.readouterr().err
    named = ["--sampler", "two-pass", "--num-sampled", "auto"]
    assert items(taken, tmp_path / "run", *named) == 2
    assert "`num_sampled` must not be 'auto' with sampler='two-pass'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "options.json").exists()


@pytest.mark.parametrize("options", [[], ["--shared"]], ids=" ".join)
def test_a_set_for_the_batch_is_asked_for(options, taken, tmp_path, chosen):
    asked = chosen(UNIGRAM)
    assert items(taken, tmp_path / "run", *BOTH, *options) == 0
    assert asked[0][3]["shared"] is (True if options else None)


@pytest.mark.slow
def test_pilots_of_real_models(taken, tmp_path, capsys):
    assert items(taken, tmp_path / "items", *BOTH, "--no-normalize") == 0
    done = capsys.readouterr()
    assert done.out.count("- --sampler and --num-sampled auto: Take ") == 1
    assert done.out.count("\nBy auto: Take ") == 1
    assert "pilot of 20 steps, by which the sampler is chosen" in done.err


def test_the_pilot_is_thrown_away(taken, tmp_path, chosen, monkeypatch):
    """The task that is trained is a new one, with the data of the first."""
    chosen(CLUSTERS)
    tasks, make = [], RetrievalTask.__init__

    def made(self, *arguments, **options):
        tasks.append(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(RetrievalTask, "__init__", made)
    assert items(taken, tmp_path / "run", *BOTH, "--test", taken) == 0
    pilot, task = tasks
    assert pilot.settings.sampler == "unigram" and task.settings.sampler == "clusters"
    assert task.leave_out and task.test is pilot.test is not None
    start = RetrievalTask(task._given, task._labels, task.settings, leave_out=True)
    assert not np.array_equal(pilot.model.class_vectors(), start.model.class_vectors())


def test_inputs_of_tune_are_those_of_the_model(taken, tmp_path, monkeypatch):
    given = {}

    def choose(inputs, *wanted, **options):
        given.update(inputs)
        return Choice(UNIGRAM, "")

    monkeypatch.setattr(auto, "choose", choose)
    train, steps = RetrievalTask.step, []

    def counted(self, epoch, index):
        steps.append((epoch, index))
        return train(self, epoch, index)

    monkeypatch.setattr(RetrievalTask, "step", counted)
    assert items(taken, tmp_path / "items", *BOTH, "--epochs", "12", "--tau", "3") == 0
    assert steps[:100] == [divmod(k, 10) for k in range(100)]  # before the run
    assert steps[100:102] == [(0, 0), (0, 1)]
    for name in ("class_embeddings", "h"):
        np.testing.assert_allclose(np.linalg.norm(given[name], axis=1), 1.0, rtol=1e-5)
    assert given["tau"] == 3.0 and given["batch"] == 20
    assert len(given["h"]) == len(given["labels"]) == 190
    assert np.ptp(given["labels"]) == 39  # one of each, not the first
