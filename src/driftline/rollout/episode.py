"""One episode: prompt, turns and observations, until the environment or a limit ends it.

    reset -> render -> generate -> step(text) -> render what it answered -> generate -> ...

How it may end, and what that means for its group:

| status | when | reward |
|---|---|---|
| ok | the environment ended it | the environment's, None if it gave none |
| truncated | a limit of turns (by the environment: with its reward), or no room left in the context | likewise |
| truncated | the whole episode took too long, and the environment judged it (`environment.at_deadline`) | likewise |
| env_error | the environment raised, or returned what cannot be used | None |
| timeout | a reset or a step took too long, or the whole episode, and nobody judged it | None |
| engine_error | the engine failed | None |
| cancelled | `cancel` was called | None |

A reward is never made up: only what the environment gave counts. The environment is closed in every case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from driftline.engine.protocol import Engine, Generation, GenerationRequest
from driftline.engine.tokens import Renderer
from driftline.environment import Message, StepResult, Task, TaskFamily
from driftline.errors import DeadlineExceeded, DriftlineError, EngineDied, EnvironmentFailed
from driftline.params import RunParameters
from driftline.records import EpisodeSeconds, Trajectory, TrajectoryStatus
from driftline.rollout import assignment
from driftline.rollout.answers import LONG_TEXT, as_text, given_tokens, readable
from driftline.rollout.fairness import Slices
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.rollout.played import PlayedEnvironment
from driftline.rollout.pool import CHARACTERS_A_TOKEN, EnvironmentPool
from driftline.rollout.transcript import Transcript, check_turn

PARTS_OF_A_TURN = 8
"""How often the engine may hand back a turn unfinished."""
POLICY_ROLE = "assistant"
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode to play."""

    run: str
    cell: str
    group: int
    member: int
    attempt: int
    task: Task
    task_set: str
    priority: int = 0
    """Of its requests in the engine; lower runs first."""
    stratum: str = ""
    """Of the task, in its task set."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """How it is sampled, and how much of anything it may take."""

    seed: int
    temperature: float
    top_p: float
    top_k: int
    max_turns: int
    max_tokens_per_turn: int
    context_tokens: int
    step_deadline_s: float
    episode_deadline_s: float
    request_deadline_s: float
    judge_at_deadline: bool = False
    """Whether the environment may judge an episode that ran out of time."""

    @classmethod
    def of(cls, parameters: RunParameters, *, temperature: float | None = None) -> EpisodeLimits:
        """Read them from a run's parameters; `temperature` replaces that of the rollout."""
        rollout, environment, engine = parameters.rollout, parameters.environment, parameters.engine
        return cls(
            seed=parameters.seed,
            temperature=rollout.temperature if temperature is None else temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_turns=environment.max_turns,
            max_tokens_per_turn=rollout.max_tokens_per_turn,
            context_tokens=engine.max_model_len,
            step_deadline_s=environment.step_deadline_s,
            episode_deadline_s=environment.episode_deadline_s,
            request_deadline_s=engine.request_deadline_s,
            judge_at_deadline=environment.at_deadline == "judge",
        )


@dataclass(frozen=True, slots=True)
class EpisodeResources:
    """What all episodes of a process share."""

    family: TaskFamily
    engine: Engine
    renderer: Renderer
    limits: EpisodeLimits
    guard: EnvironmentGuard
    """Awaits the environments that run in the event loop."""
    busy: BusyMeter
    clock: Callable[[], float] = time.time
    pool: EnvironmentPool | None = None
    """Where environments live; None is all in the event loop."""
    slices: Slices = field(default_factory=Slices)
    """Lets a few of many episodes go on in each round of the event loop."""
    by_environment: Mapping[str, EpisodeResources] = field(default_factory=dict[str, "EpisodeResources"])
    """Environment id -> what episodes of that part of a mixture are played with; empty where there is one family."""

    def of(self, task: Task) -> EpisodeResources:
        """What an episode of a task is played with."""
        return self.by_environment.get(task.environment, self)


class Episode:
    """Plays one episode once. `messages` is what was said, for a reader."""

    def __init__(self, spec: EpisodeSpec, resources: EpisodeResources) -> None:
        resources = resources.of(spec.task)
        self.spec = spec
        self.messages: list[Message] = []
        self.failure: DriftlineError | None = None
        """What made it end as `engine_error`."""
        self._using = resources
        self._limits = resources.limits
        self._transcript = Transcript()
        pool = resources.pool or EnvironmentPool(resources.family, resources.guard, placement="loop")
        self._request_seconds: list[tuple[float, float]] = []
        self._environment = PlayedEnvironment(
            spec, resources.limits, pool, resources.busy, resources.clock, self._request_seconds
        )
        self.prompt_tokens: int | None = None
        """Tokens of the prompt, once it is there."""
        self._turns = 0
        self._reward: float | None = None
        self._success: bool | None = None
        self._reward_parts: Mapping[str, float] = {}
        self._status: TrajectoryStatus = "ok"
        self._reason = ""
        self._engine_seconds = dict.fromkeys(("queued", "prefilling", "decoding"), 0.0)
        self._deadline: asyncio.Timeout | None = None
        self._sampling = False
        """Whether the engine is at work on a turn, so that the environment waits."""
        self._cancel_reason: str | None = None

    @property
    def oldest_version(self) -> int | None:
        """Policy version of the first sampled token, None before it."""
        return self._transcript.oldest_version

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy has sampled for it so far, the turn under way excepted."""
        return self._transcript.sampled_tokens

    def cancel(self, reason: str) -> None:
        """End the episode as `cancelled`, soon; cancelling the task that plays it gives no trajectory."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
            if self._deadline is not None and not self._deadline.expired():
                self._deadline.reschedule(asyncio.get_running_loop().time())

    async def play(self) -> Trajectory:
        """Play it to one of its ends. All but cancellation of the task end in a trajectory."""
        started_unix = self._using.clock()
        try:
            async with asyncio.timeout(None) as self._deadline:
                if self._cancel_reason is None:
                    await self._run()
        except (DriftlineError, TimeoutError) as error:
            await self._end_early(error)
        finally:
            self._deadline = None
            ended_by_itself = self._status in ("ok", "truncated") and self._turns > 0
            await self._environment.close(ended_by_itself=ended_by_itself)
        if self._cancel_reason is not None and self._reward is None:
            self._end("cancelled", self._cancel_reason)
        return self._trajectory(started_unix)

    def _begin_deadline(self) -> None:
        """Its time runs from here on, unless it was cancelled before: that has set the deadline to then."""
        if self._deadline is not None and self._cancel_reason is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._limits.episode_deadline_s)

    async def _run(self) -> None:
        await self._using.slices.turn()
        prompt = await self._environment.reset(on_ready=self._begin_deadline)
        self.messages.extend(readable(prompt))
        observed = await self._tokens(prompt, lambda: self._using.renderer.start(prompt))
        self.prompt_tokens = None if observed is None else len(observed)
        if self.prompt_tokens == 0:
            raise EnvironmentFailed("reset returned a prompt without a token: give the policy something to go on")
        while self._turns < self._limits.max_turns:
            if observed is None or len(self._transcript) + len(observed) >= self._limits.context_tokens:
                self._end("truncated", f"the context of {self._limits.context_tokens} tokens is full")
                return
            self._transcript.observe(observed)
            text, ids, stopped = await self._sample_turn()
            result = await self._take_turn(text, ids)
            if result.terminated or result.truncated:
                self._end("ok" if result.terminated else "truncated", "" if result.terminated else "by its rules")
                return
            extend = partial(self._using.renderer.extend, result.messages, stopped=stopped)
            observed = await self._tokens(result.messages, extend)
        self._end("truncated", f"{self._limits.max_turns} turns without an end")

    async def _tokens(
        self, messages: Sequence[Message], render: Callable[[], tuple[int, ...]]
    ) -> tuple[int, ...] | None:
        """What messages are in tokens, or None if they are too long for any context."""
        if any(message.token_ids is not None for message in messages):
            return given_tokens(messages, self._using.renderer.vocabulary_size)
        characters = sum(len(message.content) for message in messages)
        if characters > self._limits.context_tokens * CHARACTERS_A_TOKEN:
            return None
        return render() if characters <= LONG_TEXT else await asyncio.to_thread(render)

    async def _take_turn(self, text: str, ids: tuple[int, ...]) -> StepResult:
        """Give one turn to the environment."""
        self._turns += 1
        self.messages.append(Message(POLICY_ROLE, text))
        result = await self._environment.step(text, ids)
        if self._deadline is None or self._deadline.expired():
            raise TimeoutError
        self.messages.extend(readable(result.messages))
        self._earned(result)
        return result

    async def _sample_turn(self) -> tuple[str, tuple[int, ...], bool]:
        """Sample until a stop id, the limit of tokens or the end of the context: text, ids, and if it is whole.

        A turn of prescribed length has no stop ids, and is whole.
        """
        turn_tokens = self._environment.turn_tokens
        prescribed = None if turn_tokens is None else self._prescribed_tokens(turn_tokens)
        stop_ids = self._using.renderer.stop_ids if prescribed is None else ()
        ids: list[int] = []
        for part in range(PARTS_OF_A_TURN):
            limit = self._limits.max_tokens_per_turn if prescribed is None else prescribed
            room = min(limit - len(ids), self._limits.context_tokens - len(self._transcript))
            if room <= 0:
                return self._using.renderer.text(ids), tuple(ids), prescribed is not None
            generation = await self._generate(self._request(room, part, stop_ids))
            # At once, or an account of tokens that is taken meanwhile would lack these.
            self._transcript.sampled(generation)
            await self._using.slices.turn()
            ids.extend(generation.token_ids)
            check_turn(generation, room, stop_ids)
            if generation.finish_reason != "abort":
                stopped = prescribed is not None or ids[-1] in stop_ids
                return self._using.renderer.text(ids), tuple(ids), stopped
        raise EngineDied(f"the engine handed back a turn unfinished {PARTS_OF_A_TURN} times")

    def _prescribed_tokens(self, turn_tokens: tuple[int, ...]) -> int:
        """Tokens of the turn that comes now."""
        limits = self._limits
        if self._turns >= len(turn_tokens):
            raise EnvironmentFailed(f"{len(turn_tokens)} turns are prescribed, and the episode goes on after them")
        tokens, room = turn_tokens[self._turns], limits.context_tokens - len(self._transcript)
        if tokens > limits.max_tokens_per_turn:
            raise EnvironmentFailed(
                f"a turn of {tokens} tokens is prescribed: raise rollout.max_tokens_per_turn "
                f"({limits.max_tokens_per_turn})"
            )
        if tokens > room:
            raise EnvironmentFailed(
                f"a turn of {tokens} tokens is prescribed, and {room} are left of the context: raise "
                f"engine.max_model_len ({limits.context_tokens})"
            )
        return tokens

    def _request(self, max_tokens: int, part: int, stop_ids: tuple[int, ...]) -> GenerationRequest:
        spec, limits = self.spec, self._limits
        return GenerationRequest(
            id=f"{spec.run}/{spec.group}.{spec.member}.{spec.attempt}/{self._turns}.{part}",
            prompt_ids=tuple(self._transcript.token_ids),
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            temperature=limits.temperature,
            seed=assignment.request_seed(limits.seed, spec.group, spec.member, self._turns, part),
            top_p=limits.top_p,
            top_k=limits.top_k,
            priority=spec.priority,
            affinity=(f"{spec.group}.{spec.member}.{spec.attempt}", f"{spec.group}"),
        )

    async def _generate(self, request: GenerationRequest) -> Generation:
        deadline_s = self._limits.request_deadline_s
        start = self._using.busy.begin()
        self._sampling = True
        try:
            async with asyncio.timeout(deadline_s):
                generation = await self._using.engine.generate(request)
        except DeadlineExceeded as error:
            raise EngineDied(str(error)) from error
        except TimeoutError:
            raise EngineDied(
                f"the engine did not answer a request within {deadline_s:g} s: raise engine.request_deadline_s"
            ) from None
        finally:
            self._request_seconds.append((start, self._using.busy.end()))
        self._sampling = False
        self._engine_seconds["queued"] += generation.queued_s
        self._engine_seconds["prefilling"] += generation.prefill_s
        self._engine_seconds["decoding"] += generation.decode_s
        return generation

    async def _end_early(self, error: DriftlineError | TimeoutError) -> None:
        """End by a failure, or by the environment's judgement if nothing is wrong but the time."""
        out_of_time = self._sampling and not isinstance(error, DriftlineError) and self._cancel_reason is None
        if not (out_of_time and self._limits.judge_at_deadline and self._turns > 0):
            self._fail(error)
            return
        try:
            judged = await self._environment.judge()
        except (EnvironmentFailed, DeadlineExceeded) as failure:
            self._fail(failure)
            return
        if judged is None:
            self._fail(error)
            return
        self._transcript.drop_observation()
        self._earned(judged)
        self._end("truncated", f"judged as it stood: {self._out_of_time()}")

    def _fail(self, error: DriftlineError | TimeoutError) -> None:
        """The one place that says which failure is which ending. What was earned before it does not count."""
        self._earned(StepResult())
        if isinstance(error, EnvironmentFailed):
            self._end("env_error", str(error))
        elif isinstance(error, DeadlineExceeded):
            self._end("timeout", str(error))
        elif isinstance(error, DriftlineError):
            self.failure = error
            self._end("engine_error", str(error))
        else:
            self._end("timeout", self._out_of_time())

    def _out_of_time(self) -> str:
        limit_s = self._limits.episode_deadline_s
        return f"the episode took longer than {limit_s:g} s: raise environment.episode_deadline_s"

    def _earned(self, result: StepResult) -> None:
        self._reward, self._success, self._reward_parts = result.reward, result.success, result.reward_parts

    def _end(self, status: TrajectoryStatus, reason: str) -> None:
        self._status, self._reason = status, as_text(reason[:LONGEST_REASON])

    def _trajectory(self, started_unix: float) -> Trajectory:
        spec, transcript = self.spec, self._transcript
        return Trajectory(
            run=spec.run,
            group=spec.group,
            member=spec.member,
            attempt=spec.attempt,
            cell=spec.cell,
            task_id=spec.task.id,
            task_set=spec.task_set,
            environment=spec.task.environment,
            token_ids=tuple(transcript.token_ids),
            loss_mask=tuple(transcript.loss_mask),
            logprobs=tuple(transcript.logprobs),
            segments=tuple(transcript.segments),
            turns=self._turns,
            reward=self._reward,
            reward_parts=dict(self._reward_parts),
            success=self._success,
            status=self._status,
            reason=self._reason,
            seconds=EpisodeSeconds(**self._engine_seconds, **self._environment.seconds),
            started_unix=started_unix,
            finished_unix=self._using.clock(),
            request_seconds=tuple(self._request_seconds),
            stratum=spec.stratum,
        )
