"""Every error Driftline raises, on one page.

Each is a `DriftlineError` and also the standard error a reader would expect, takes one message, and can be
pickled (Prefect stores the exceptions of its tasks). A message says what is wrong and what to do about it.

    DriftlineError
    ├── ConfigurationError   (ValueError)         a setting is impossible or contradicts another
    ├── StoreError           (OSError)            the object store
    │   ├── StoreUnavailable (ConnectionError)    not reachable, or refusing, after the retries
    │   ├── ObjectMissing    (FileNotFoundError)  no object under that key
    │   ├── PreconditionFailed (FileExistsError)  a conditional write lost: somebody else wrote first
    │   └── CorruptObject    (ValueError)         truncated, wrong digest, another run's, or a newer format
    ├── EpochLost            (PermissionError)    another trainer has taken the role; this one must stop
    ├── EngineError          (RuntimeError)       the generation engine
    │   ├── EngineStartFailed                     it never became ready
    │   ├── EngineDied                            it stopped answering during the run
    │   └── WeightUpdateFailed                    it does not hold the weights it should
    │       └── ProbeNotReproduced                ... by its own log-probabilities
    ├── PublishRefused       (ValueError)         weights that must not be published: unchanged, empty, not finite
    ├── LogprobsNotFinite    (ValueError)         a log-probability is NaN or infinite; one trajectory is at fault
    ├── TrackingUnavailable  (ConnectionError)    MLflow does not answer
    ├── EnvironmentFailed    (RuntimeError)       an environment raised, or returned what cannot be used
    ├── ToolMisused          (ValueError)         the policy called a tool wrongly: it is told, nothing else
    ├── SandboxError         (RuntimeError)       a sandbox for programs that nobody has read
    │   ├── SandboxUnavailable                    its backend is missing, or may not do what it must
    │   ├── SandboxFailed                         it is gone, or gives no answer that can be read
    │   └── SandboxRefused                        a path that is not there, leads through a link, or finds no room
    ├── DeadlineExceeded     (TimeoutError)       a bounded wait ran out
    │   └── NoProgress                            ... for anything at all to progress in a cell that has work
    ├── ProcessFailed        (ChildProcessError)  a supervised process ended badly
    │   ├── TransientProcessFailure               ... in a way that a restart may mend
    │   └── ParentEnded                           ... because whoever had started it has ended
    ├── LimitExceeded        (RuntimeError)       a bounded number of failures is used up
    └── StackError           (RuntimeError)       the local stack: a port is taken, a part died at start
"""

import math


class DriftlineError(Exception):
    """Base of all errors raised by Driftline."""


class ConfigurationError(DriftlineError, ValueError):
    """A setting is impossible, contradicts another, or would have no effect."""


class StoreError(DriftlineError, OSError):
    """Something about the object store."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store cannot be reached or keeps refusing, after every retry."""


class ObjectMissing(StoreError, FileNotFoundError):
    """There is no object under the key."""


class PreconditionFailed(StoreError, FileExistsError):
    """A conditional write lost: the object exists already, or has changed since it was read."""


class CorruptObject(StoreError, ValueError):
    """An object is truncated, has a wrong digest, belongs to another run or to a newer format."""


class EpochLost(DriftlineError, PermissionError):
    """Another trainer holds a higher epoch; this one may write nothing more."""


class EngineError(DriftlineError, RuntimeError):
    """Something about the generation engine."""


class EngineStartFailed(EngineError):
    """The engine never became ready."""


class EngineDied(EngineError):
    """The engine stopped answering during the run."""


class WeightUpdateFailed(EngineError):
    """The engine does not hold the weights that the manifest describes."""


class ProbeNotReproduced(WeightUpdateFailed):
    """With a version's weights loaded, the engine gives its probe other log-probabilities than the trainer."""

    difference_nats: float = math.nan
    """Largest difference; set by who raises it."""


class PublishRefused(DriftlineError, ValueError):
    """These weights must not be published: unchanged after a step, empty, or not finite."""


class LogprobsNotFinite(DriftlineError, ValueError):
    """A policy gave a sampled token a log-probability that is NaN or infinite; the message names the trajectory."""

    sequence: int | None = None
    """Its place in a training batch, where that is all that is known of it."""


class TrackingUnavailable(DriftlineError, ConnectionError):
    """MLflow does not answer."""


class EnvironmentFailed(DriftlineError, RuntimeError):
    """An environment raised, or returned something that cannot be used."""


class ToolMisused(DriftlineError, ValueError):
    """The policy called a tool wrongly; the message is what it observes."""


class SandboxError(DriftlineError, RuntimeError):
    """Something about a sandbox. Never what the program inside did: that is in its result."""


class SandboxUnavailable(SandboxError):
    """The sandbox's backend is missing, or this machine does not let it do what it must."""


class SandboxFailed(SandboxError):
    """The sandbox is gone, or gives no answer that can be read."""


class SandboxRefused(SandboxError):
    """A file operation was refused: no such file, a path through a link, not a file, no room."""


class DeadlineExceeded(DriftlineError, TimeoutError):
    """A bounded wait ran out."""


class NoProgress(DeadlineExceeded):
    """A cell has work, and neither an episode nor a claim, a token or a write progresses."""


class ProcessFailed(DriftlineError, ChildProcessError):
    """A supervised process ended with an error."""


class TransientProcessFailure(ProcessFailed):
    """A supervised process ended in a way that a restart may mend: its engine or the store failed, or a signal."""


class ParentEnded(ProcessFailed):
    """Work was ended because the flow run that had started it has ended; the work itself may go on elsewhere."""


class LimitExceeded(DriftlineError, RuntimeError):
    """A bounded number of failures is used up."""


class StackError(DriftlineError, RuntimeError):
    """The local stack cannot be started or stopped."""
