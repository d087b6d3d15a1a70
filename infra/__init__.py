"""What Driftline runs on: the local stack (supervisord and its parts), set-up, and templates for other places.

`stack.py` is the way in (`up`, `down`, `status`); `layout.py` says where its files lie and which ports it has,
`parts.py` what it consists of, `supervisor.py` and `processes.py` how processes are started, found and ended.
"""
