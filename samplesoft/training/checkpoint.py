"""Checkpoint files: arrays and JSON, with a checksum by which damaged files are rejected."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import (
    FileInUse,
    draft_path,
    is_abandoned,
    is_in_use,
    move_into_place,
    read_json,
    retry_while_in_use,
    without_prefix,
    writer_name,
)
from samplesoft._validation import require_instance, short_repr
from samplesoft.data.arrays import ArrayArchive, open_arrays
from samplesoft.distributed.layer import ShardedSoftmaxLayer

FORMAT = 2
SHARDS = "shards.npz"  # lists the files of a sharded layer
Arrays = dict[str, NDArray[Any]]

# prefix of the names of arrays in a file; without it, a name such as "file" would clash with an
# argument of numpy.savez
_ARRAY = "array/"
_CHECKSUM_MARK = b"\nsamplesoft sha256 "
_CHECKSUM_BYTES = len(_CHECKSUM_MARK) + 64
_ABSENT = "nothing"  # stands for a missing setting or array in messages
# for the error message of a file that is not a checkpoint: what the file must be, and a remedy
_EXPECTED_AND_REMEDY = (
    "a whole checkpoint of samplesoft",
    "take another copy, such as best.npz for checkpoint.npz of a run, which then goes on from it, "
    "or train anew",
)


class Checkpoint(NamedTuple):
    """Content of a checkpoint file: settings, progress and arrays.

    Parameters
    ----------
    config : dict
        Settings of the model and of its training, as values that JSON can store. They must be equal
        when a run is resumed.
    values : dict
        Progress of training, as values that JSON can store.
    arrays : dict of str to ndarray
        Parameters and other state.
    """

    config: dict[str, Any]
    values: dict[str, Any]
    arrays: Arrays


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a file.

    An existing file is replaced only when the new one is complete on the disk.

    Parameters
    ----------
    path : str or Path
        Path of the ``.npz`` file, which `numpy.load` can read. It contains no pickles, and ends
        with a checksum.
    checkpoint : Checkpoint
        Content to write.

    Raises
    ------
    OSError
        If the file cannot be written; an old file then remains. If another program holds the old
        file for more than a second, as is possible on Windows, the new checkpoint is in a file that
        the error names.
    TypeError, ValueError
        If an array holds Python objects, or JSON cannot store `config` or `values`.

    Notes
    -----
    Threads and processes may write to one path concurrently: the last to finish wins, and readers
    always find a complete file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.npz")
    ...     write_checkpoint(path, Checkpoint({"dim": 2}, {"epoch": 3}, {"w": np.ones(2)}))
    ...     checkpoint = read_checkpoint(path)
    >>> checkpoint.config, checkpoint.values, checkpoint.arrays
    ({'dim': 2}, {'epoch': 3}, {'w': array([1., 1.])})
    """
    draft = write_draft(path, checkpoint)
    with explain_write_errors(path):
        move_into_place(draft, path)


def write_draft(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint to a temporary file next to `path`, and return the path of that file."""
    for name, array in checkpoint.arrays.items():
        # Python objects are stored as pickles, which can run code when the file is read
        if array.dtype.hasobject:
            raise TypeError(
                f"array {name!r} of a checkpoint must hold numbers, got dtype {array.dtype}; "
                "leave Python objects out, or convert them."
            )

    header = {"format": FORMAT, "config": checkpoint.config, "values": checkpoint.values}
    # reject NaN, which is not valid JSON, and which other programs could not read
    header_json = json.dumps(header, allow_nan=False)
    arrays: dict[str, Any] = {_ARRAY + name: a for name, a in checkpoint.arrays.items()}

    with explain_write_errors(path), draft_path(path) as draft, open(draft, "w+b") as stream:
        # as bytes, because NumPy stores text in four bytes a character
        np.savez(stream, about=np.frombuffer(header_json.encode(), np.uint8), **arrays)
        stream.seek(0)
        # the zip format has a checksum for each array, which cannot detect a missing array
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.write(_CHECKSUM_MARK + digest.encode())

    return draft


@contextmanager
def explain_write_errors(path: str | Path) -> Iterator[None]:
    """Return a context that adds the file name and a remedy to an OSError, such as a full disk.

    The new error is a PermissionError if another program may hold the file, else an OSError.
    """
    try:
        yield
    except FileInUse:  # the message of this error already has the file name
        raise
    except OSError as error:
        raise (PermissionError if is_in_use(error) else OSError)(
            f"{str(path)!r} cannot be written: {error.strerror or error}; make room, create "
            "its folder or correct the permissions, and resume if there is a checkpoint."
        ) from None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint from a file, and verify its checksum.

    Parameters
    ----------
    path : str or Path
        A file that `write_checkpoint` has written.

    Returns
    -------
    Checkpoint
        Content of the file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the arrays would not fit.
    ValueError
        If the file is not a checkpoint, is truncated or changed, or has another format.
    """
    with open_arrays(path, *_EXPECTED_AND_REMEDY) as stream:
        # verify the checksum before parsing, because a damaged file may have any content
        _require_checksum(stream)
        archive = ArrayArchive(path, stream)
        header = read_json(archive.read(["about"])["about"].tobytes())
        config = header["config"]
        values = header["values"]
        names = [name for name in archive.names if name.startswith(_ARRAY)]
        # do not read arrays of another format, which may have any meaning and size
        arrays = archive.read(names) if header["format"] == FORMAT else {}

    if header["format"] != FORMAT:
        raise ValueError(
            f"{str(path)!r} is a checkpoint of format {short_repr(header['format'])}, and this "
            "version "
            f"of samplesoft reads format {FORMAT}; use the version that wrote it, or train anew in "
            "another folder."
        )

    by_name = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
    return Checkpoint(config, values, by_name)


@contextmanager
def open_checkpoint(path: str | Path, model: str | None = None) -> Iterator[Checkpoint]:
    """Return a context with the checkpoint in a file, for a body that makes an object from it.

    Errors of the body become a ValueError with the file name. The checksum shows that this package
    wrote the file, so that the body need not validate the config, only the arrays. If `model` is
    given, the entry ``model`` of the config must be equal to it.
    """
    checkpoint = read_checkpoint(path)
    try:
        stored_model = checkpoint.config.get("model")
        if model not in (None, stored_model):
            shown_model = stored_model
            reader = "what wrote it"
            if stored_model is None:
                shown_model = "a run of samplesoft train"
                reader = "samplesoft.training.read_linear_softmax"
            raise ValueError(
                f"{str(path)!r} must hold a {model}, got {short_repr(shown_model)}; read it with "
                f"{reader}."
            )

        yield checkpoint

    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # an error whose message already has the file name needs no other
        if str(error).startswith(repr(str(path))):
            raise

        reason = f"unknown {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ValueError(
            f"{str(path)!r} must hold what this version of samplesoft writes, got something else: "
            f"{reason[:300]}; read it with the version that wrote it, or take another copy."
        ) from error


def storable_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator that a file can store.

    `random_state` is removed from `parameters`. The result contains it only if it is an integer.
    """
    seed = parameters.pop("random_state")
    return {**parameters, **({"random_state": int(seed)} if isinstance(seed, Integral) else {})}


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are when they have been written to JSON and read again.

    Tuples become lists, and NumPy scalars become Python numbers.
    """

    def to_python_number(value: Any) -> Any:
        if isinstance(value, np.floating):
            return float(value)  # also for longdouble, which models accept
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(
            f"settings must be plain JSON, got {type(value).__name__}; use numbers, strings, "
            "lists or dicts."
        )

    plain_config: dict[str, Any] = json.loads(json.dumps(config, default=to_python_number))
    return plain_config


def require_config(
    path: str | Path, stored: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Raise a ValueError that names all stored settings that differ from the expected ones."""
    # stored settings were converted by JSON; convert the expected settings in the same way
    stored = _flatten(stored)
    expected = _flatten(plain(expected))
    different = [
        f"{name} = {_repr_or_absent(stored, name)} (asked for: {_repr_or_absent(expected, name)})"
        for name in dict.fromkeys([*expected, *stored])
        if stored.get(name, _ABSENT) != expected.get(name, _ABSENT)
    ]

    if different:
        raise ValueError(
            f"{str(path)!r} was written with {', '.join(different)}; give the settings it was "
            "written with, or train anew in another folder."
        )


def copy_arrays(path: str | Path, stored: Arrays, into: Arrays) -> None:
    """Copy the arrays of a checkpoint into the arrays `into` of a model.

    Names, shapes and dtypes must be equal, and all values finite. Otherwise this raises ValueError,
    and copies nothing.
    """
    # validate all arrays before copying the first
    for name in [*into, *stored]:
        stored_type, model_type = (
            f"{a[name].dtype} of shape {a[name].shape}" if name in a else _ABSENT
            for a in (stored, into)
        )
        if stored_type != model_type:
            raise ValueError(
                f"{str(path)!r} holds {stored_type} as {name!r} where the model has "
                f"{model_type}; "
                "build the model as it was when the file was written, or train anew in another "
                "folder."
            )

        if not np.isfinite(stored[name]).all():
            raise ValueError(
                f"{str(path)!r} holds NaN or infinity in {name!r}, which no training writes; take "
                "another copy."
            )

    for name, array in into.items():
        array[...] = stored[name]


def array_group(name: str, arrays: Arrays) -> Arrays:
    """Return the arrays in the group `name` of a checkpoint; their names lose the prefix ``name/``.

    The groups are "parameters", "optimizer", "state" and "examples".
    """
    return without_prefix(name, arrays, "/")


def write_shards(folder: str | Path, layer: ShardedSoftmaxLayer) -> None:
    """Write the class vectors and optimizer states of a sharded layer to files in a folder.

    There is one file for each shard, and a file ``shards.npz`` that lists them. The list is
    replaced when all new files are complete on the disk. Old files are removed after that. Only one
    shard at a time is copied from its worker to this process.

    Parameters
    ----------
    folder : str or Path
        Folder for this layer only; made if it does not exist.
    layer : ShardedSoftmaxLayer
        The layer. If it loses a worker later, its error message names this folder.

    Raises
    ------
    OSError
        If a file cannot be written; the old files then remain.
    RuntimeError
        If the connection to a worker is lost.
    TypeError
        If an argument is malformed.

    See Also
    --------
    read_shards
    """
    require_instance("layer", layer, ShardedSoftmaxLayer)
    with explain_write_errors(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)

    path = Path(folder) / SHARDS
    shards = layer.shards
    old_files = []
    if path.exists():
        with open_checkpoint(path, SHARDS) as old_listing:
            old_files = [path.with_name(name) for name in old_listing.values["files"]]

    # unique file names, so that concurrent writers do not overwrite each other's files
    writer = writer_name()
    names = [f"shard-{writer}-{s}.npz" for s in range(shards.num)]
    rows = layer.class_embeddings

    try:
        for s, name in enumerate(names):
            arrays = shards.call_all("saved", [()], s)[0]
            write_checkpoint(path.with_name(name), Checkpoint({"model": name}, {}, arrays))
        values = {"files": names, "bounds": shards.bounds.tolist(), "steps": layer.steps}
        config = {"model": SHARDS, "shape": list(rows.shape), "dtype": str(rows.dtype)}
        write_checkpoint(path, Checkpoint(config, values, {}))
    except FileInUse:
        # keep the files, because the temporary file of the new list refers to them
        raise
    except BaseException:
        _remove_files(map(path.with_name, names))
        raise

    # a concurrent writer may have replaced the list; the files in the current list must remain
    with open_checkpoint(path, SHARDS) as new_listing:
        listed_files = {*new_listing.values["files"]}

    own_process = str(os.getpid())
    for leftover in path.parent.glob("shard-*-*.npz"):
        name_parts = leftover.stem.split("-")[1:]  # process id, more of the writer's name, shard
        is_own = name_parts[0] == own_process
        if not is_own and is_abandoned(leftover, "-".join(name_parts[:-1])):
            old_files.append(leftover)

    _remove_files(leftover for leftover in old_files if leftover.name not in listed_files)
    shards.set_checkpoint_hint(str(folder))


def _remove_files(files: Iterable[Path]) -> None:
    """Remove files if they exist, and ignore errors."""
    for file in files:
        # on Windows, a file that is being read cannot be removed
        with suppress(OSError):
            retry_while_in_use(partial(file.unlink, missing_ok=True))


class StoredShards:
    """Class vectors and optimizer states of a sharded layer in files.

    A new layer can read them with any number of shards.

    Parameters
    ----------
    path : Path
        The list of files that `write_shards` has written.

    Attributes
    ----------
    folder : str
        Folder of the files.
    shape : tuple of int
        Shape (n, d) of the class vectors.
    dtype : dtype
        Dtype of the class vectors.
    steps : int
        Number of steps that the optimizers had taken.
    """

    def __init__(self, path: Path) -> None:
        with open_checkpoint(path, SHARDS) as listing:
            self._files = [path.with_name(name) for name in listing.values["files"]]
            self._bounds = listing.values["bounds"]
            self.steps = listing.values["steps"]
            self.shape = tuple(listing.config["shape"])
            self.dtype = np.dtype(listing.config["dtype"])
        self.folder = str(path.parent)

    def part(self, lo: int, hi: int) -> tuple[NDArray[Any], Arrays]:
        """Return the vectors (hi - lo, d) and the optimizer state of the classes [lo, hi)."""
        shards = []
        for file, (start, stop) in zip(self._files, pairwise(self._bounds), strict=True):
            overlap = slice(max(lo - start, 0), max(min(hi, stop) - start, 0))
            if overlap.start < overlap.stop:
                with open_checkpoint(file, file.name) as stored:
                    shards.append(
                        {k: a[overlap] if a.ndim else a for k, a in stored.arrays.items()}
                    )

        joined = {
            k: np.concatenate([shard[k] for shard in shards]) if a.ndim else a
            for k, a in shards[0].items()
        }

        return joined.pop("class_embeddings"), array_group("optimizer", joined)


def read_shards(folder: str | Path) -> StoredShards:
    """Open the files of `write_shards`, to be passed to a new layer as its `class_embeddings`.

    Parameters
    ----------
    folder : str or Path
        Folder that was passed to `write_shards`.

    Returns
    -------
    StoredShards
        The stored class vectors and optimizer states. A new `ShardedSoftmaxLayer` reads the files
        one shard after another, and verifies their checksums. It may have another number of shards,
        and needs the loss, sampler and optimizer of the old layer. Its samplers are rebuilt, as by
        `refresh`. If the old layer was refreshed before it was written, and the number of shards is
        the same, then training continues with the same bits.

    Raises
    ------
    FileNotFoundError
        If the folder has no such file.
    ValueError
        If the files are not from `write_shards`.

    Examples
    --------
    >>> import tempfile
    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> from samplesoft.optimizers import SGD
    >>> settings = SampledSoftmaxLoss(), "uniform", 2
    >>> layer = ShardedSoftmaxLayer(np.eye(6), *settings, optimizer=SGD(0.1), workers=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_shards(folder, layer)
    ...     rows = read_shards(folder)
    ...     again = ShardedSoftmaxLayer(rows, *settings, optimizer=SGD(0.1), workers=2)
    >>> bool((again.class_embeddings.take(np.arange(6)) == np.eye(6)).all())
    True
    """
    return StoredShards(Path(folder) / SHARDS)


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dict, whose names are paths such as ``task.model``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _repr_or_absent(settings: Mapping[str, Any], name: str) -> str:
    """Return a short ``repr`` of a setting for a message, or "nothing" if there is none."""
    return short_repr(settings[name]) if name in settings else _ABSENT


def _require_checksum(stream: BinaryIO) -> None:
    """Raise ValueError unless the checksum at the end of a file matches all bytes before it.

    Afterwards the stream is at its start.
    """
    stream.seek(0)
    if stream.read(2) != b"PK":
        raise ValueError("it is no .npz file; a file of joblib is read by joblib.load")

    # read in blocks, because the file may be larger than memory
    num_unread = max(stream.seek(0, 2) - _CHECKSUM_BYTES, 0)
    stream.seek(0)

    digest = hashlib.sha256()
    while num_unread and (block := stream.read(min(num_unread, 1 << 20))):
        digest.update(block)
        num_unread -= len(block)
    if stream.read() != _CHECKSUM_MARK + digest.hexdigest().encode():
        raise ValueError(
            "its last bytes are not the checksum of the rest, so it was cut short or changed"
        )
    stream.seek(0)
