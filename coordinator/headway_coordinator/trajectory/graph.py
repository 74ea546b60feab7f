"""The message graph of one episode: an append-only forest whose nodes hold only the tokens they add.

A prompt node adds given tokens (system prompt, tool result). A sampled node adds the model's tokens, each
with its log-probability and policy version. The path from a root to a node is the exact token sequence the
engine saw. Tokens are never edited. If a client's history no longer matches what was sampled, the graph
forks, and both branches stay recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from headway_api.records import VersionSpan


@dataclass(frozen=True)
class Node:
    """Tokens added to the end of `parent`'s path."""

    parent: int | None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """The log-probability of each token if the model sampled them; empty for given tokens."""
    versions: tuple[VersionSpan, ...] = ()
    """For sampled tokens: spans of policy versions that cover all of `tokens`. Position 0 is the node's first
    token."""

    @property
    def sampled(self) -> bool:
        """Whether the model produced these tokens."""
        return bool(self.versions)


@dataclass
class Graph:
    """The nodes in the order in which they were added. A node's parent always comes before the node."""

    nodes: list[Node] = field(default_factory=list, init=False)
    _children: dict[int | None, list[int]] = field(default_factory=dict, init=False, repr=False)
    """Parent -> its children; the roots are children of None. Without this index, time would grow with the
    square of the number of turns."""
    _line: list[int] | None = field(default_factory=list, init=False, repr=False)
    """The tokens of all nodes, concatenated, while no node has two children. None after the first fork. Most
    episodes never fork."""
    _ends: list[int] = field(default_factory=list, init=False, repr=False)
    """The length of each node's path."""

    def path(self, index: int | None) -> list[int]:
        """Indices of the nodes from the root to `index`, both included."""
        path: list[int] = []
        while index is not None:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    def tokens(self, index: int | None) -> list[int]:
        """The token sequence that ends with node `index`."""
        line = self._line  # another thread may set the field to None meanwhile
        if line is not None:
            return line[: 0 if index is None else self._ends[index]]
        return [token for i in self.path(index) for token in self.nodes[i].tokens]

    def leaves(self) -> list[int]:
        """Nodes without children, oldest first."""
        return [i for i in range(len(self.nodes)) if i not in self._children]

    def turns(self) -> dict[int, int]:
        """Sampled node -> the number of its turn.

        Every turn adds one sampled node, in the order in which the turns are recorded.
        """
        sampled = (i for i, node in enumerate(self.nodes) if node.sampled)
        return {index: turn for turn, index in enumerate(sampled)}

    def children(self, index: int | None) -> list[int]:
        """Direct children of a node, or the roots for None."""
        return list(self._children.get(index, ()))

    def add_prompt(self, parent: int | None, tokens: Sequence[int]) -> int:
        """Append given tokens. Returns the new node, or an equal child that exists already."""
        for child in self.children(parent):
            if not self.nodes[child].sampled and self.nodes[child].tokens == tuple(tokens):
                return child
        return self._add(Node(parent, tuple(tokens)))

    def add_sampled(
        self, parent: int, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[VersionSpan]
    ) -> int:
        """Append tokens that the model sampled after `parent`.

        Raises:
            ValueError: log-probabilities or version spans do not cover the tokens exactly.
        """
        if len(logprobs) != len(tokens):
            raise ValueError(f"{len(tokens)} sampled tokens came with {len(logprobs)} log-probabilities")
        if not covers(versions, len(tokens)):
            raise ValueError(f"version spans {list(versions)} do not cover {len(tokens)} tokens")
        return self._add(Node(parent, tuple(tokens), tuple(logprobs), tuple(versions)))

    def place(self, prompt: Sequence[int]) -> int:
        """The node whose path is exactly `prompt`. It is added if it does not exist.

        The node continues the longest sampled sequence with which the prompt begins. If the client's history
        drifted, the new node's branch begins at the last node that agrees with the prompt.
        """
        at, shared = self._deepest(prompt)
        if shared < len(prompt):
            return self.add_prompt(at, prompt[shared:])
        if at is None:
            raise ValueError("a prompt has at least one token")
        return at

    def forks_at(self, tokens: Sequence[int], unseen: Collection[int] = ()) -> bool:
        """Whether a turn with these prompt `tokens` forks from the sampled history.

        It forks if the prompt begins with no sampled sequence. It also forks if another sampled sequence
        already follows the last one with which the prompt begins. For example, an agent that edits the middle
        of its history returns to an earlier point. Sequences in `unseen`, which the agent never saw, do not
        count.
        """
        last = self.last_sampled(tokens)
        return last is None or any(i not in unseen for i in self._sampled_after(last))

    def last_sampled(self, tokens: Sequence[int]) -> int | None:
        """The last sampled node whose whole path is a prefix of `tokens`."""
        at, _ = self._deepest(tokens)
        return next((i for i in reversed(self.path(at)) if self.nodes[i].sampled), None)

    def _sampled_after(self, index: int) -> Iterator[int]:
        """The nearest sampled nodes below a node, one on each branch."""
        reached = self.children(index)
        while reached:
            child = reached.pop()
            if self.nodes[child].sampled:
                yield child
            else:
                reached += self.children(child)

    def _deepest(self, prompt: Sequence[int]) -> tuple[int | None, int]:
        """The best node whose path is a prefix of `prompt`, and the path's length in tokens.

        A node after the longest sampled sequence is preferred, then after the newest sampled node, and then
        the node with the longest path.
        """
        line = self._line
        if line and prompt[: len(line)] == line:
            return len(self.nodes) - 1, len(line)
        tokens = tuple(prompt)
        best = (0, -1, 0, -1)
        reached: list[tuple[int, int, int, int]] = [best]
        while reached:
            sampled, newest, shared, at = reached.pop()
            for child in self.children(None if at < 0 else at):
                node = self.nodes[child]
                end = shared + len(node.tokens)
                if tokens[shared:end] == node.tokens:
                    mark = (end, child) if node.sampled else (sampled, newest)
                    reached.append((*mark, end, child))
                    best = max(best, reached[-1])
        return (None if best[3] < 0 else best[3]), best[2]

    def _add(self, node: Node) -> int:
        if not node.tokens:
            raise ValueError("a node adds at least one token")
        self.nodes.append(node)
        index = len(self.nodes) - 1
        self._children.setdefault(node.parent, []).append(index)
        begin = 0 if node.parent is None else self._ends[node.parent]
        self._ends.append(begin + len(node.tokens))
        if self._line is not None and begin == len(self._line):
            self._line += node.tokens
        else:
            self._line = None
        return index


def covers(versions: Sequence[VersionSpan], length: int) -> bool:
    """Whether the spans tile `[0, length)` in order, without gap or overlap."""
    position = 0
    for span in versions:
        if span.start != position or span.end <= span.start:
            return False
        position = span.end
    return position == length and bool(versions)
