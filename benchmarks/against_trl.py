"""Driftline beside TRL 1.16: the same task, base policy, batch, learning rate, seeds and two processors, in turn.

    python -m benchmarks.against_trl --state against-trl.json [--json figures.json] [--seeds 0 1 2] [--steps 40]

TRL lives in an environment of its own, which this makes from `benchmarks/trl/requirements.lock` (`--venv`). What its
user writes is in `benchmarks/trl`; of Driftline's user, what differs from its defaults is in `against_trl_driftline`.

| arm | who plays | who samples |
|---|---|---|
| trl-environment | TRL's tool loop (`environment_factory`) | transformers, the whole context anew each turn |
| trl-rollout | the user (`rollout_func`), a turn of all at a time | transformers, one KV cache over the turns |
| trl-vllm-environment | TRL's tool loop | vLLM in TRL's process (colocated) |
| trl-vllm-rollout | the user, as in trl-rollout | vLLM in TRL's process |
| driftline-synchronous | Driftline, lead 0 | vLLM |
| driftline-overlapped | Driftline, a batch of lead | vLLM |

Each arm is played with tools that answer at once, and with reads that take 20 ms (lognormal, sigma 0.9).

- **The clock** runs from the moment at which engine and trainer are ready, for both, to the end of a step. Held-out
  success is measured beside it, after the arm, from the weights of every `--evaluate-every`th step: the same program,
  tasks and draws for all.
- **Alike**: the tasks and their order, float32, the loss (clipped surrogate of one step a batch, sequence mean,
  sample deviation of the group), AdamW, the limit of tokens a turn and of turns, and the version of vLLM. Neither
  writes checkpoints or logs metrics.
- **Not alike**: sampling draws differ. TRL has no store: Driftline publishes each version and keeps each trajectory
  within its clock. TRL is given as many threads, one or two, as made it quicker in a trial before. TRL's tool loop
  calls one tool after the other; the user's, and Driftline, all at once. A turn that is cut at its limit is followed
  by an end of line in all but TRL's tool loop. Driftline runs without Prefect and MLflow here.
- TRL 1.16 names vLLM 0.31 as the newest it supports; 0.32, Driftline's, works. Its vLLM does not load new weights on
  processors: `benchmarks/trl/vllm_on_processors.py` mends that.

An arm that is in `--state` is not played again. Ratios are of arms that one run of this script has played.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import against_trl_driftline as driftline
from benchmarks.against_trl_table import code_lines, step_seconds, summarise, table
from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.local_run import base_model, host_engine
from benchmarks.state import State, add_state_option, open_state
from benchmarks.trl import weights_name
from driftline.params import RunParameters, settings
from driftline.process import supervise
from driftline.records import ModelSource
from driftline.rollout import assignment
from driftline.store import files, tasksets
from environments.pointer_chase import PointerChase
from infra.set_up import STAMP, digest, install_packages, interpreter, read_stamp
from tasks.refresh import draw, publish
from tests.support.seaweed import Seaweed, running_seaweed

log = logging.getLogger("against-trl")

ROOT = Path(__file__).resolve().parents[1]
USER = ROOT / "benchmarks" / "trl"
LOCK = USER / "requirements.lock"
VENV = Path.home() / ".cache" / "driftline" / "trl-1.16"
PLAYERS = {
    "trl-environment": ("settings", "environment_factory"),
    "trl-rollout": ("settings", "rollout_func", "playing", "cached_turns"),
    "trl-vllm-environment": ("settings", "environment_factory", "vllm_on_processors"),
    "trl-vllm-rollout": ("settings", "rollout_func", "playing", "vllm_turns", "vllm_on_processors"),
}
"""TRL's arms, and the modules that its user writes for them; the second is the program."""
ARMS = (*PLAYERS, *driftline.LEADS)
THREADS = (1, 2)
TRIAL_STEPS = 5
ARM_DEADLINE_S = 2400.0
DEFAULTS = RunParameters()  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, slots=True)
class Choice:
    """What holds for all arms."""

    steps: int
    learning_rate: float
    target: float
    """Held-out success."""
    evaluate_every: int
    """Steps."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all arms of a seed have in common."""

    seed: int
    model: ModelSource
    model_dir: Path
    tasks: Path
    """Payloads of the training tasks, a line each, in the order of Driftline's groups."""
    held_out: Path


class Comparison:
    """Plays arms."""

    def __init__(
        self, seaweed: Seaweed, folder: Path, choice: Choice, python: str, inherited: Mapping[str, str]
    ) -> None:
        self._store = seaweed.store(180.0)
        self._folder = folder
        self._choice = choice
        self._python = python
        self._inherited = inherited
        self._grounds: dict[int, Ground] = {}
        self._number = 0

    async def play(self, arm: str, seed: int, threads: int, *, waits: bool) -> dict[str, Any]:
        """Play an arm, and evaluate its policies."""
        ground, out = await self._ground(seed), self._out(arm)
        if arm in PLAYERS:
            steps = await self._trl(arm, ground, out, threads, waits=waits, steps=self._choice.steps)
        else:
            steps = await self._driftline(arm, ground, out, waits=waits)
        held_out = await self._evaluate(ground, out)
        return {"arm": arm, "waits": waits, "seed": seed, "threads": threads, "steps": steps, "held_out": held_out}

    async def try_threads(self, arm: str, seed: int, *, waits: bool) -> int:
        """The number of threads with which one of TRL's arms is quicker; all have two processors."""
        ground = await self._ground(seed)
        seconds: dict[int, float] = {}
        for threads in THREADS:
            played = await self._trl(
                arm, ground, self._out(arm), threads, waits=waits, steps=TRIAL_STEPS, weights=False
            )
            seconds[threads] = step_seconds({"steps": played})
        log.info("%s: seconds a step by threads: %s", arm, seconds)
        return min(seconds, key=seconds.__getitem__)

    async def _trl(
        self, arm: str, ground: Ground, out: Path, threads: int, *, waits: bool, steps: int, weights: bool = True
    ) -> list[dict[str, Any]]:
        asked = {
            "model_dir": str(ground.model_dir),
            "tasks": str(ground.tasks),
            "out": str(out),
            "seed": ground.seed,
            "steps": steps,
            "learning_rate": self._choice.learning_rate,
            "groups": driftline.GROUPS,
            "group_size": driftline.GROUP_SIZE,
            "max_turns": DEFAULTS.environment.max_turns,
            "max_tokens_per_turn": DEFAULTS.rollout.max_tokens_per_turn,
            "context_tokens": DEFAULTS.engine.max_model_len,
            "vllm": "vllm" in arm,
            "tool_waits": waits,
            "weights_every": self._choice.evaluate_every if weights else 0,
        }
        (out / "asked.json").write_text(json.dumps(asked))
        module = f"benchmarks.trl.{PLAYERS[arm][1]}"
        await self._program([module, "--asked", str(out / "asked.json")], out, threads)
        return json.loads((out / "steps.json").read_text())

    async def _driftline(self, arm: str, ground: Ground, out: Path, *, waits: bool) -> list[dict[str, Any]]:
        choice = self._choice
        set_ = driftline.chosen(
            arm, waits=waits, seed=ground.seed, steps=choice.steps, learning_rate=choice.learning_rate
        )
        params = RunParameters.model_validate(set_)
        async with asyncio.timeout(ARM_DEADLINE_S):
            run, steps = await driftline.run(params, out.name, self._store, ground.model, out)
        await asyncio.to_thread(driftline.save_weights, run, self._evaluated(), out)
        return steps

    async def _evaluate(self, ground: Ground, out: Path) -> dict[str, float]:
        weights = [out / weights_name(step) for step in self._evaluated()]
        if not weights:
            return {}
        result = out / "held-out.json"
        given = {"--model-dir": ground.model_dir, "--tasks": ground.held_out, "--out": result, "--seed": ground.seed}
        limits = {
            "--max-turns": DEFAULTS.environment.max_turns,
            "--max-tokens-per-turn": DEFAULTS.rollout.max_tokens_per_turn,
            "--context-tokens": DEFAULTS.engine.max_model_len,
        }
        words = [str(word) for pair in (given | limits).items() for word in pair]
        await self._program(["benchmarks.trl.evaluate", *words, *map(str, weights)], out, 1)
        return json.loads(result.read_text())

    async def _program(self, words: Sequence[str], out: Path, threads: int) -> None:
        """Run one of the programs of `benchmarks/trl` in TRL's environment."""
        async with asyncio.timeout(ARM_DEADLINE_S):
            with (out / "log.txt").open("a") as file:
                await supervise(
                    [self._python, "-m", *words],
                    env=trl_environment(self._inherited, threads),
                    cwd=ROOT,
                    on_log=lambda line: print(line, file=file),
                )

    def _evaluated(self) -> range:
        every = self._choice.evaluate_every
        return range(every, self._choice.steps + 1, every)

    def _out(self, arm: str) -> Path:
        self._number += 1
        out = self._folder / f"{arm}-{self._number}"
        out.mkdir()
        return out

    async def _ground(self, seed: int) -> Ground:
        if seed not in self._grounds:
            self._grounds[seed] = await self._prepare(seed)
        return self._grounds[seed]

    async def _prepare(self, seed: int) -> Ground:
        params = RunParameters(seed=seed)
        model = await base_model(params, self._store, self._folder)
        model_dir = await asyncio.to_thread(files.local_model, self._store, model, settings().work_dir)
        chosen = params.environment
        proposal = draw(PointerChase(), chosen.train_tasks, chosen.held_out_tasks, seed)
        version = (await asyncio.to_thread(publish, self._store, chosen.task_set, proposal)).version
        tasks = await asyncio.to_thread(tasksets.load, self._store, chosen.task_set, version)
        groups = range(self._choice.steps * driftline.GROUPS)
        order = [tasks[assignment.task_index(seed, group, version, len(tasks))] for group in groups]
        places = self._folder / f"tasks-{seed}.jsonl", self._folder / f"held-out-{seed}.jsonl"
        for path, played in zip(places, (order, proposal.held_out), strict=True):
            path.write_text("".join(json.dumps(dict(one.payload)) + "\n" for one in played))
        return Ground(seed, model, model_dir, *places)


def trl_environment(inherited: Mapping[str, str], threads: int) -> dict[str, str]:
    """The process environment of a program in TRL's environment.

    Args:
        inherited: This process's own, as it was before it made itself a host of engines.
        threads: How many of them torch uses.
    """
    return {
        **inherited,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # What TRL's colocated vLLM asks for, and what vLLM needs on processors.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Without compilation, as Driftline's engine: TRL has no option for that.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_USE_AOT_COMPILE": "0",
    }


def make_environment(place: Path) -> str:
    """Make TRL's environment where it is not there yet; returns its Python."""
    done = digest(LOCK)
    if read_stamp(place).get("packages") != done:
        log.info("installing TRL into %s", place)
        place.parent.mkdir(parents=True, exist_ok=True)
        install_packages(place, LOCK)
        (place / STAMP).write_text(json.dumps({"packages": done}))
    return interpreter(place)


def lines_by_arm(choice: Choice) -> dict[str, int]:
    """Lines that a user writes, of an arm: code for TRL, parameters and the command that starts it for Driftline."""
    found = {
        arm: sum(code_lines((USER / f"{module}.py").read_text()) for module in modules)
        for arm, modules in PLAYERS.items()
    }
    for arm in driftline.LEADS:
        set_ = driftline.chosen(arm, waits=False, seed=0, steps=choice.steps, learning_rate=choice.learning_rate)
        found[arm] = driftline.lines_set(set_) + 1
    return found


async def carry_out(state: State, given: argparse.Namespace, choice: Choice) -> None:
    """Play what is not done yet: all arms of a seed in turn, without and then with tool waits."""
    places = {f"{arm}/{'20ms' if waits else 'instant'}": (arm, waits) for waits in given.waits for arm in given.arms}
    missing, run = state.missing(places, given.seeds), int(time.time())
    if not missing:
        return
    inherited = dict(os.environ)
    python = await asyncio.to_thread(make_environment, given.venv.absolute())
    os.sched_setaffinity(0, given.cpus)
    with tempfile.TemporaryDirectory(prefix="driftline-against-trl-") as name, running_seaweed(Path(name)) as seaweed:
        host_engine(DEFAULTS.engine, seaweed, Path(name))
        comparison = Comparison(seaweed, Path(name), choice, python, inherited)

        async def play(place: str, seed: int) -> dict[str, Any]:
            arm, waits = places[place]
            threads = state.document["threads"]
            if arm in PLAYERS and place not in threads:
                threads[place] = given.threads or await comparison.try_threads(arm, seed, waits=waits)
            return await comparison.play(arm, seed, threads.get(place, 1), waits=waits) | {"run": run}

        await state.add(missing, play, shown)


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the log tells of an arm."""
    return {"seconds a step": step_seconds(found), "last success": list(found["held_out"].values())[-1:]}


def main() -> None:
    """Play the arms that lack, and print the table."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument(
        "--waits", nargs="+", type=int, default=[0, 1], choices=(0, 1), help="0: tools answer at once"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--target", type=float, default=0.88, help="held-out success")
    parser.add_argument("--evaluate-every", type=int, default=2, help="steps")
    parser.add_argument("--threads", type=int, default=0, help="of TRL; 0 tries one and two")
    parser.add_argument("--cpus", type=int, nargs="+", default=[0, 1], help="processors of every arm")
    parser.add_argument("--venv", type=Path, default=VENV, help="TRL's environment, made where it lacks")
    add_state_option(parser, "against-trl.json")
    add_json_option(parser)
    given = parser.parse_args()
    choice = Choice(given.steps, given.learning_rate, given.target, given.evaluate_every)
    state = open_state(parser, given.state, {"choice": asdict(choice)}, "threads", "results")
    asyncio.run(carry_out(state, given, choice))
    rows = summarise(list(state.results.values()), lines_by_arm(choice), choice.target)
    print(table(rows))
    write({"choice": asdict(choice), "threads": state.document["threads"], "arms": rows}, given.json)


if __name__ == "__main__":
    main()
