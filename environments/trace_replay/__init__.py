"""`trace_replay/v1`: episodes of a prescribed shape, so that two ways of collecting them do exactly the same work."""
