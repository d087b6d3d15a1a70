# pyright: basic
"""The final policy as a model directory that transformers and vLLM load as it is.

`python -m driftline.weights.export --run R [--card README.md]`: the weights of HEAD's version, with the base
model's configuration and tokenizer, uploaded under `runs/<run>/model/`. Its result event names the files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from driftline.errors import ConfigurationError
from driftline.params import settings
from driftline.process import child_main, emit
from driftline.records import FileEntry, PolicyVersion, WeightsManifest
from driftline.store import keys
from driftline.store.client import open_store
from driftline.store.files import download, upload_directory
from driftline.store.run_store import RunStore
from driftline.weights.assemble import assemble, check_fit
from driftline.weights.checkpoint import CONFIG, INDEX, SINGLE, read_model_directory
from driftline.weights.lora import BaseModel, check_adapters

CARD = "README.md"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")


def export_directory(run_store: RunStore, version: PolicyVersion, directory: Path) -> WeightsManifest:
    """Write a policy version as a model directory: the base model's files, with this version's weights.

    Raises:
        CorruptObject: An object is not what its manifest says, or the weights do not fit the base model.
        ObjectMissing: The version was not published, or the base model is gone.
    """
    manifest = run_store.read_manifest(version)
    base = run_store.describe().model
    download(run_store.store, base.files, base.prefix, directory)
    tensors = _weights_of(manifest, assemble(run_store.store, manifest), directory)
    for old in [*_weights(directory), directory / INDEX]:
        old.unlink(missing_ok=True)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    if manifest.adapter is None:
        _stamp_dtype(directory / CONFIG, manifest.dtype)
    return manifest


def export_run(run_store: RunStore, *, card: str | None = None) -> tuple[WeightsManifest, tuple[FileEntry, ...]]:
    """Export HEAD's version and upload it under the run's `model/`.

    Args:
        run_store: The run's objects.
        card: Text of the model card, `README.md`; None leaves the base model's away.

    Raises:
        ConfigurationError: The run has not published a version.
    """
    head, _ = run_store.read_head()
    if head.version is None:
        raise ConfigurationError(f"run {run_store.run!r} has published no version yet: let it commit a step first")
    with tempfile.TemporaryDirectory(prefix="driftline-export-") as scratch:
        directory = Path(scratch) / "model"
        manifest = export_directory(run_store, head.version, directory)
        (directory / CARD).unlink(missing_ok=True)
        if card is not None:
            (directory / CARD).write_text(card, encoding="utf-8")
        return manifest, upload_directory(run_store.store, keys.final_model_prefix(run_store.run), directory)


def _weights_of(manifest: WeightsManifest, tensors: dict[str, Tensor], base: Path) -> dict[str, Tensor]:
    """A version's whole weights; adapters are folded into those of the base, in the base's dtype."""
    shapes = read_model_directory(base).shapes
    if manifest.adapter is None:
        check_fit(tensors, shapes, manifest)
        return tensors
    check_adapters(tensors, shapes, manifest)
    model = BaseModel(base)
    try:
        return {
            name: model.with_adapters(name, tensors, manifest.adapter).to(model.tensor(name).dtype) for name in shapes
        }
    finally:
        model.close()


def _weights(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix in WEIGHT_SUFFIXES]


def _stamp_dtype(config_file: Path, dtype: str) -> None:
    """Say in the configuration which dtype the weights have now."""
    config = json.loads(config_file.read_bytes())
    config.pop("torch_dtype", None)
    config_file.write_text(json.dumps(config | {"dtype": dtype}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Export, as a child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--card", type=Path, help="file with the text of the model card")
    arguments = parser.parse_args(argv)
    card = arguments.card.read_text(encoding="utf-8") if arguments.card else None
    manifest, files = export_run(RunStore(open_store(settings()), arguments.run), card=card)
    emit(
        {
            "event": "result",
            "version": manifest.version.number,
            "prefix": keys.final_model_prefix(arguments.run),
            "files": [file.key for file in files],
        }
    )


if __name__ == "__main__":
    child_main(main)
