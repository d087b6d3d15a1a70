"""Shortest paths in a directed graph: {node: {neighbour: length}}."""

import heapq


def distances(graph, start):
    """The length of the shortest way to every node that can be reached."""
    known = {}
    waiting = [(0, start)]
    while waiting:
        length, node = heapq.heappop(waiting)
        if node in known:
            continue
        known[node] = length
        for neighbour, step in graph.get(node, {}).items():
            if step < 0:
                raise ValueError("lengths must not be negative")
            if neighbour not in known:
                heapq.heappush(waiting, (length + step, neighbour))
    return known


def shortest_path(graph, start, goal):
    """The nodes of a shortest way, or None."""
    best = {start: 0}
    before = {}
    waiting = [(0, start)]
    while waiting:
        length, node = heapq.heappop(waiting)
        if node == goal:
            return _walk_back(before, start, goal)
        if length > best[node]:
            continue
        for neighbour, step in sorted(graph.get(node, {}).items()):
            candidate = length + step
            if neighbour not in best or candidate < best[neighbour]:
                best[neighbour] = candidate
                before[neighbour] = node
                heapq.heappush(waiting, (candidate, neighbour))
    return None


def _walk_back(before, start, goal):
    path = [goal]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


def reachable(graph, start):
    """All nodes that can be reached, the start included, sorted."""
    seen = {start}
    stack = [start]
    while stack:
        node = stack.pop()
        for neighbour in graph.get(node, {}):
            if neighbour not in seen:
                seen.add(neighbour)
                stack.append(neighbour)
    return sorted(seen)


def has_cycle(graph):
    """Whether some way leads back to where it began."""
    done = set()

    def leads_back(node, path):
        if node in path:
            return True
        if node in done:
            return False
        found = any(leads_back(neighbour, path | {node}) for neighbour in graph.get(node, {}))
        done.add(node)
        return found

    return any(leads_back(node, frozenset()) for node in graph)
