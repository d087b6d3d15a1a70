"""The offset between generating and trained policy, over HTTP and as a page; reads the object store alone.

figures      what is kept of a step record                                  pure
chain        committed steps, followed from HEAD; new ones are fetched once
recent_spans the last stretches of the timeline
reader       a run as it stands: head, steps, engines                       blocking
followed     reads runs in threads while somebody asks; answers in time     asynchronous
downsample   long series in few points                                      pure
models       what is answered, as types
answers, series   from what was read to what is answered                    pure
exposition   the same for Prometheus                                        pure
problems, access  errors as problem documents; who may ask, and from where
app, server  the routes; uvicorn
page/        the page at `/`
"""
