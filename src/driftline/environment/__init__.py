"""The environment contract: what a family of tasks offers, and how it is found.

A *family* (`TaskFamily`, versioned id `name/v1`) generates tasks and makes environments. An environment plays
one episode at a time, in messages; turning messages into token ids is the collector's business, and what the
policy sampled is never tokenised again.

    family = resolve("pointer_chase/v1")
    task = family.generate(seed=7, count=1)[0]
    environment = family.make()
    messages = await environment.reset(task, seed=0)
    observation, reward, terminated, truncated, info = await environment.step(">ab")
    await environment.close()

What else a family or an environment may say, each a small protocol that nobody has to implement:

| who | says | protocol |
|---|---|---|
| family | where its environments run: in the event loop, in a thread, in processes | `PlacedFamily` |
| family | that its tasks come in levels of difficulty | `GradedFamily` |
| family | which tools its policy may call | `ToolFamily` |
| environment | how long the policy's turns are: one that replays recorded work does | `PrescribingEnvironment` |
| environment | that it can play another episode when one has ended | `ReusableEnvironment` |
| environment | what an episode is worth that ran out of time | `JudgingEnvironment` |
| environment | that it can be taken up amid an episode | `SnapshotEnvironment` |
| environment | that it takes turns as token ids | `TokenEnvironment` |

`driftline environments check my_package:MyFamily` plays a family and says what of the contract it does not keep
(`driftline.environment.checks`); docs/environments.md is the guide.
"""

from driftline.environment.abilities import GradedFamily as GradedFamily
from driftline.environment.abilities import JudgingEnvironment as JudgingEnvironment
from driftline.environment.abilities import PlacedFamily as PlacedFamily
from driftline.environment.abilities import Placement as Placement
from driftline.environment.abilities import PrescribingEnvironment as PrescribingEnvironment
from driftline.environment.abilities import Prescription as Prescription
from driftline.environment.abilities import ReusableEnvironment as ReusableEnvironment
from driftline.environment.abilities import Snapshot as Snapshot
from driftline.environment.abilities import SnapshotEnvironment as SnapshotEnvironment
from driftline.environment.abilities import TokenEnvironment as TokenEnvironment
from driftline.environment.abilities import ToolFamily as ToolFamily
from driftline.environment.abilities import judges as judges
from driftline.environment.abilities import prescribes as prescribes
from driftline.environment.abilities import reusable as reusable
from driftline.environment.abilities import snapshots as snapshots
from driftline.environment.abilities import takes_tokens as takes_tokens
from driftline.environment.abilities import tool_schemas as tool_schemas
from driftline.environment.contract import Environment as Environment
from driftline.environment.contract import Message as Message
from driftline.environment.contract import StepResult as StepResult
from driftline.environment.contract import Task as Task
from driftline.environment.contract import TaskFamily as TaskFamily
from driftline.environment.contract import as_messages as as_messages
from driftline.environment.drawing import at_most as at_most
from driftline.environment.drawing import tasks_for as tasks_for
from driftline.environment.drawing import tasks_of_level as tasks_of_level
from driftline.environment.mixture import Mixture as Mixture
from driftline.environment.mixture import Part as Part
from driftline.environment.mixture import family_named as family_named
from driftline.environment.mixture import level_of as level_of
from driftline.environment.mixture import named_parts as named_parts
from driftline.environment.mixture import parts_of as parts_of
from driftline.environment.mixture import shared as shared
from driftline.environment.registry import ADAPTERS as ADAPTERS
from driftline.environment.registry import Registered as Registered
from driftline.environment.registry import has_local as has_local
from driftline.environment.registry import registered as registered
from driftline.environment.registry import resolve as resolve
from driftline.environment.tools import Tool as Tool
from driftline.environment.tools import Toolbox as Toolbox
from driftline.environment.tools import ToolCall as ToolCall
