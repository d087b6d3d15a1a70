"""Environments of other ecosystems as task families, each imported when it is first used.

| name | what it is | needs |
|---|---|---|
| `gymnasium/<EnvId>/v1` | an environment that `gymnasium.make` knows, in text | the extra `gymnasium` |
| `openenv/<url>/v1` | an OpenEnv server, over its WebSocket | nothing but the server |
| `verifiers/<task set>/v1` | a task set of verifiers (its v1 interface), one turn a task | the extra `verifiers` |

Such a name takes the adapter's defaults. Who wants others writes a module and names it by dotted path:

    # my_environments.py
    from driftline.adapters.gymnasium import Gymnasium

    LAKE = Gymnasium("FrozenLake-v1", kwargs={"is_slippery": False}, actions=("left", "down", "right", "up"))

    driftline environments check my_environments:LAKE

What all of them keep: a task's id is the hash of its whole state, versions of packages or server included; what the
other side raises is `EnvironmentFailed`; without a reward from there, there is none here; docs/environments.md.
"""
