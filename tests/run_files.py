"""What runs of training have left in their folders, for comparison to the last bit."""

from samplesoft.training import read_checkpoint, read_log

TIMES = ("seconds", "epoch_seconds", "examples_per_second")


def log_values(folder):
    """Return the log without times."""
    return [_timeless(record) for record in read_log(folder / "log.jsonl")]


def assert_same_end(first, second):
    assert log_values(first) == log_values(second)
    for name in ("checkpoint.npz", "best.npz"):
        one, two = (read_checkpoint(folder / name) for folder in (first, second))
        assert one.arrays.keys() == two.arrays.keys()
        for key, array in one.arrays.items():
            assert array.tobytes() == two.arrays[key].tobytes(), key
        assert _timeless(one.values) == _timeless(two.values)


def _timeless(figures):
    return {name: value for name, value in figures.items() if name not in TIMES}
