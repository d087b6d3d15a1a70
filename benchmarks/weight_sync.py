"""What it costs to bring a step's weights to an engine: as a delta, as an anchor, and by plain torch.save and load.

    python -m benchmarks.weight_sync --json sync.json [--models small smollm2 1b] [--without-engine]

Publisher and reader are the real ones, over a real SeaweedFS. The small Llama (0.65M parameters) and SmolLM2-135M
take real AdamW steps in float32 at each learning rate and publish in bfloat16; a real vLLM engine takes the versions
up. The model of 1B parameters is drawn: weights of standard deviation 0.02, updates of the learning rate's size; its
engine is in bfloat16. Encoding is in seconds of one core; everything else in wall seconds, which compare only
with their pair from the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.figures import add_json_option, write
from benchmarks.weight_sources import Drawn, Noised, Trained
from driftline.records import PolicyVersion, Probe, WeightsManifest
from driftline.store.meter import MeteredStore
from driftline.store.run_store import RunStore
from driftline.training.publishing import probe_ids
from driftline.weights import delta
from driftline.weights.assemble import assemble_onto
from driftline.weights.publisher import WeightsPublisher
from driftline.weights.tensors import HeldWeights
from tests.support.seaweed import Seaweed, running_seaweed

RATES = (1e-6, 2e-6, 5e-6)
STEPS = {"small": 10, "smollm2": 2, "1b": 3}
"""Deltas, and as many anchors, at each learning rate."""
SAMPLE_BYTES = 32 * 2**20
GB, MB = 1e9, 1e6


class Bench:
    """One run in the store: a publisher, and a reader that follows."""

    def __init__(self, seaweed: Seaweed, run: str, probe: Any = None) -> None:
        self._store = MeteredStore(seaweed.store(patience_s=600.0))
        self.run_store = RunStore(self._store, run)
        self._probe = probe or (lambda: Probe((0, 1), (0.0,)))
        self.publisher = self.new_publisher()
        self.manifests: list[WeightsManifest] = []
        self.held: HeldWeights | None = None

    def new_publisher(self) -> WeightsPublisher:
        """A publisher that knows no version yet, and so begins with an anchor."""
        return WeightsPublisher(self.run_store, dtype="bfloat16", tied_embeddings=True, chain_factor=100.0)

    def publish(self, tensors: Iterator[tuple[str, Tensor]], *, anchor: bool = False) -> dict[str, Any]:
        """Publish the next version; what it cost, the source's own time left out."""
        if anchor:
            self.publisher = self.new_publisher()
        source = _Timed(tensors)
        before, probe = self._store.seconds, self._probe()
        with cpu_seconds(delta, "difference", "encode") as encoding:
            begin = time.monotonic()
            manifest = self.publisher.publish(
                source,
                version=PolicyVersion(len(self.manifests), 1),
                probe=probe,
                previous=self.manifests[-1] if self.manifests else None,
                expect_change=False,
            )
            seconds = time.monotonic() - begin - source.seconds
        self.manifests.append(manifest)
        return {
            "kind": manifest.kind,
            "changed": (manifest.changed_elements or 0) / manifest.elements,
            "bytes": sum(file.bytes for file in manifest.files),
            "full_bytes": 2 * manifest.elements,
            "publish_s": seconds,
            "upload_s": self._store.seconds - before,
            "encode_cpu_s": encoding["difference"] + encoding["encode"],
        }

    def read(self, number: int = -1, *, late: bool = False) -> dict[str, Any]:
        """Fetch, apply and verify a version, onto what is held or as a late reader."""
        manifest = self.manifests[number]
        begin = time.monotonic()
        bodies = [self._store.get(file.key).body for file in manifest.files]
        download_s = time.monotonic() - begin
        del bodies
        with cpu_seconds(delta, "apply") as applying:
            begin = time.monotonic()
            found = assemble_onto(self._store, manifest, None if late else self.held)
            seconds = time.monotonic() - begin
        self.held = found.held
        return {"download_s": download_s, "apply_cpu_s": applying["apply"], "assemble_s": seconds}

    def compression(self, number: int = -1) -> dict[str, float]:
        """What zlib at its quickest makes of a sample of a version's bytes."""
        body = self._store.get(self.manifests[number].files[0].key).body[:SAMPLE_BYTES]
        begin = time.thread_time()
        small = zlib.compress(body, 1)
        rate = len(body) / MB / (time.thread_time() - begin)
        saved = 1 - len(small) / len(body)
        return {"saved": saved, "mb_per_cpu_s": rate, "pays_below_mb_per_s": saved * rate}


class _Timed:
    """An iterator that notes how long its source took."""

    def __init__(self, source: Iterator[tuple[str, Tensor]]) -> None:
        self._source = source
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> tuple[str, Tensor]:
        begin = time.monotonic()
        try:
            return next(self._source)
        finally:
            self.seconds += time.monotonic() - begin


@contextlib.contextmanager
def cpu_seconds(module: Any, *names: str) -> Iterator[dict[str, float]]:
    """The processor seconds that some functions of a module take."""
    spent = dict.fromkeys(names, 0.0)

    def timed(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*arguments)
            finally:
                spent[name] += time.thread_time() - begin

        return call

    originals = {name: getattr(module, name) for name in names}
    for name, function in originals.items():
        setattr(module, name, timed(name, function))
    try:
        yield spent
    finally:
        for name, function in originals.items():
            setattr(module, name, function)


def torch_files(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Plain torch.save and torch.load of the same bytes, on the local disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        begin = time.monotonic()
        torch.save(tensors, path)
        saved = time.monotonic()
        torch.load(path, weights_only=True)
        return {
            "torch_bytes": path.stat().st_size,
            "torch_save_s": saved - begin,
            "torch_load_s": time.monotonic() - saved,
        }


def measure_encoding() -> dict[str, Any]:
    """Encoding where exactly one element in a hundred changes: the best of a few tries, as of an idle core."""
    old = (torch.randn(64, 1024, 1024, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    new = old.clone()
    chosen = torch.randperm(old.numel(), generator=torch.Generator().manual_seed(1))[: old.numel() // 100]
    new.view(torch.int16).view(-1)[chosen] ^= 1
    seconds: list[float] = []
    entries: delta.Entries = {}
    for _ in range(5):
        begin = time.thread_time()
        entries = delta.encode("w", new, delta.difference(old, new))
        seconds.append(time.thread_time() - begin)
    size = sum(entry.nbytes for entry in entries.values())
    return {
        "model": "one tensor",
        "rate": None,
        "kind": "delta",
        "changed": 0.01,
        "bytes": size,
        "full_bytes": old.nbytes,
        "encode_cpu_s": min(seconds),
        "encode_gb_per_cpu_s": old.nbytes / GB / min(seconds),
    }


def measure_drawn(seaweed: Seaweed) -> list[dict[str, Any]]:
    model, bench = Drawn(), Bench(seaweed, "sync-1b")
    full = {**bench.publish(model.tensors()), **bench.read(), "compression": bench.compression()}
    assert bench.held is not None
    full |= torch_files(bench.held.tensors)
    rows = [{"model": "1b", "rate": None, **full}]
    for rate in RATES:
        model.rates.append(rate)
        row = {**bench.publish(model.tensors()), **bench.read(), "compression": bench.compression()}
        rows.append({"model": "1b", "rate": rate, **row})
    return rows


def measure_pause_of_drawn(seaweed: Seaweed, directory: Path) -> list[dict[str, Any]]:
    """The pause of an engine of 1B parameters in bfloat16, for deltas and anchors in turn."""
    noised = Noised(RATES[0])
    noised.save(directory)
    bench = Bench(seaweed, "sync-1b-engine", probe=lambda: probe_of(noised.model))
    found = [bench.publish(noised.tensors())]
    for turn in range(2 * STEPS["1b"]):
        noised.step()
        found.append(bench.publish(noised.tensors(), anchor=turn % 2 == 1))
    for row, pause in zip(found, asyncio.run(pauses(seaweed, bench, directory, dtype="bfloat16")), strict=True):
        row |= pause
    return [{"model": "1b, engine", "rate": RATES[0], **row} for row in found[1:]]


def measure_trained(seaweed: Seaweed, name: str, directory: Path, tokens: tuple[int, int], engine: bool) -> list[Any]:
    from transformers import AutoModelForCausalLM

    rows: list[dict[str, Any]] = []
    for rate in RATES:
        trained = Trained(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), rate, tokens)
        bench = Bench(seaweed, f"sync-{name}-{rate:g}", probe=lambda trained=trained: probe_of(trained.model))
        found = [{**bench.publish(trained.tensors()), **bench.read()}]
        for turn in range(2 * STEPS[name]):
            # In turn, so that both meet the same load.
            anchor = turn % 2 == 1
            trained.step()
            found.append({**bench.publish(trained.tensors(), anchor=anchor), **bench.read(late=anchor)})
            found[-1]["compression"] = bench.compression()
        assert bench.held is not None
        found[-1] |= torch_files(bench.held.tensors)
        if engine and rate == RATES[0]:
            for row, pause in zip(found, asyncio.run(pauses(seaweed, bench, directory)), strict=True):
                row |= pause
        rows += [{"model": name, "rate": rate, **row} for row in found[1:]]
    return rows


@torch.no_grad()
def probe_of(model: Any) -> Probe:
    """A probe under the weights as they are published, in float32."""
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    ids = torch.tensor([probe_ids(0, model.config.vocab_size, 64)])
    logprobs = model(ids).logits[0].float().log_softmax(-1)
    scores = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    for parameter, master in zip(model.parameters(), masters, strict=True):
        parameter.copy_(master)
    return Probe(tuple(ids[0].tolist()), tuple(scores), "float32")


async def pauses(
    seaweed: Seaweed, bench: Bench, directory: Path, dtype: Literal["float32", "bfloat16"] = "float32"
) -> list[dict[str, Any]]:
    """Have an engine take up all versions, in order."""
    from tests.support.vllm import engine_parameters, running_engine

    params = engine_parameters(max_model_len=128, max_num_seqs=8, dtype=dtype)
    found: list[dict[str, Any]] = []
    async with running_engine(params, directory, bench.run_store.run, seaweed.settings) as engine:
        for manifest in bench.manifests:
            report = await engine.update(manifest)
            assert report.loaded is not None
            found.append(
                {
                    "pause_s": report.pause_s,
                    "stage_s": report.fetch_s,
                    "loaded_bytes": report.loaded.loaded_bytes,
                    "probe_error_nats": report.probe_error,
                }
            )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The medians of each model, learning rate and kind, as Markdown."""
    columns = (
        "changed",
        "bytes",
        "encode_cpu_s",
        "publish_s",
        "upload_s",
        "download_s",
        "assemble_s",
        "loaded_bytes",
        "pause_s",
    )
    lines = ["| model | lr | kind | " + " | ".join(columns) + " |", "| " + "--- | " * (3 + len(columns))]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["rate"], row["kind"]), []).append(row)
    for (model, rate, kind), found in groups.items():
        cells = [[row[column] for row in found if column in row] for column in columns]
        shown = " | ".join(f"{statistics.median(cell):.4g}" if cell else "-" for cell in cells)
        lines.append(f"| {model} | {rate} | {kind} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "smollm2", "1b"])
    parser.add_argument("--without-engine", action="store_true", help="measure no pauses")
    add_json_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure_encoding()]
    with tempfile.TemporaryDirectory() as folder, running_seaweed(Path(folder)) as seaweed:
        base = Path(folder) / "model"
        for name in arguments.models:
            if name == "1b":
                rows += measure_drawn(seaweed)
                if not arguments.without_engine:
                    rows += measure_pause_of_drawn(seaweed, base / name)
            else:
                tokens = make(name, base / name)
                rows += measure_trained(seaweed, name, base / name, tokens, not arguments.without_engine)
            write(rows, arguments.json)
    print(table(rows))


def make(name: str, directory: Path) -> tuple[int, int]:
    """Make a model directory; returns the shape of its training batches."""
    if name == "small":
        from tests.support.tiny_llama import save, tiny_llama

        save(tiny_llama(0, tied=True), directory)
        return 16, 32
    from driftline.training.import_model import import_smollm2

    import_smollm2(directory)
    return 1, 32


if __name__ == "__main__":
    main()
