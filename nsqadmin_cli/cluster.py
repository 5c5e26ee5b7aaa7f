"""The nodes of a command, given by address or listed by nsqlookupds, and parallel requests to them.

Each node is queried on a daemon thread, which is abandoned at its timeout, so that a name server that hangs delays
neither the command nor Ctrl-C. Everything else is limited by the HTTP client's deadline. The answers of all nodes to a
question have one budget.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeVar

from nsqadmin_cli.api import Listing, Lookupd, Nsqd, PeerAPI
from nsqadmin_cli.budget import ALLOWANCE, Allowance, LookBudget
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeClient, NodeError, NodeLacks, timed_out
from nsqadmin_cli.table import Cell, Tone, failed

T = TypeVar("T")
P = TypeVar("P", bound=PeerAPI)

# Shows the progress of waiting for that many answers; called with the number received so far.
Waiting = Callable[[int], AbstractContextManager[Callable[[int], None]]]

Answers = dict[Address, T | NodeError]

_PATIENCE = 1.0  # seconds before progress is shown
_MOST_THREADS = 1000
_GRACE = 0.5  # seconds that the HTTP client has to report the time-out itself


class Cluster:
    """Owns the HTTP client and the list of nodes."""

    def __init__(self, nsqds: Iterable[Address], lookupds: Iterable[Address], http: NodeClient) -> None:
        """Takes a node that is given twice as one, or its counts would double."""
        self.timeout = http.timeout  # seconds for each answer
        self.waiting: Waiting | None = None
        self.http = http
        self.lookupds = [Lookupd(address, self.http) for address in dict.fromkeys(lookupds)]
        self.lookupd_errors: list[NodeError] = []
        self.listed: dict[Address, tuple[Listing, ...]] = {}  # what each nsqlookupd answered last
        self._named = [Nsqd(address, self.http) for address in dict.fromkeys(nsqds)]

    def acting(self, authorization: str) -> "Cluster":
        """Returns the same nodes, asked with this header in place of the token."""
        nsqds, lookupds = ([peer.address for peer in peers] for peers in (self._named, self.lookupds))
        return Cluster(nsqds, lookupds, self.http.acting(authorization))

    def nsqds(self) -> list[Nsqd]:
        """Returns the nodes given, then those listed by the nsqlookupds, by address; queries nsqlookupds at each call.
        One that fails is added to `lookupd_errors`. Raises AdminError if none answers and no node was given."""
        nodes = {node.address: node for node in self._named}
        listed: dict[Address, Nsqd] = {}
        for lookupd, producers in self._ask_for_producers().items():
            for producer in producers:
                try:
                    listed[producer.http_address] = Nsqd(producer.http_address, self.http)
                except ValueError as error:
                    self.lookupd_errors.append(NodeError("nsqlookupd", lookupd, f"lists a node at {error}"))
        nodes |= {address: listed[address] for address in sorted(listed) if address not in nodes}
        return list(nodes.values())

    def producers(self) -> list[Listing]:
        """Returns the nodes that the nsqlookupds list, each once, by address; queries them at each call."""
        producers = chain.from_iterable(self._ask_for_producers().values())
        nodes = {(producer.broadcast_address, producer.http_port): producer for producer in producers}
        return [nodes[key] for key in sorted(nodes)]

    def _ask_for_producers(self) -> dict[Address, tuple[Listing, ...]]:
        if not self.lookupds:
            return {}
        answers = self.ask_lookupds(Lookupd.nodes)
        self.lookupd_errors = errors_of(answers)
        self.listed = values_of(answers)
        if not self.listed and not self._named:
            raise AdminError("; ".join(map(str, self.lookupd_errors)))
        return self.listed

    def ask(self, question: Callable[[Nsqd], T], nodes: Sequence[Nsqd] | None = None) -> Answers[T]:
        """Asks all nodes together, and returns what `question(node)` returned for each, or the NodeError that it
        raised."""
        return ask_all(self.nsqds() if nodes is None else nodes, question, self.timeout, self.waiting)

    def ask_lookupds(self, question: Callable[[Lookupd], T]) -> Answers[T]:
        return ask_all(self.lookupds, question, self.timeout, self.waiting)


def ask_all(
    peers: Sequence[P],
    question: Callable[[P], T],
    timeout: float,
    waiting: Waiting | None = None,
    budget: LookBudget | None = None,
) -> Answers[T]:
    """Asks as `Cluster.ask` does. A peer that takes more than `timeout` seconds counts as a NodeError. `budget` is for
    all answers together, by default that of these peers."""
    begun = time.monotonic()
    deadline = begun + timeout + _GRACE
    futures: dict[Address, Future[T]] = {peer.address: Future() for peer in peers}
    budget = budget or LookBudget(len(futures))
    left = iter(peers)

    def serve() -> None:
        for peer in left:
            if time.monotonic() < deadline:
                answer(futures[peer.address], question, peer, Allowance(budget))

    for _ in range(min(len(futures), _MOST_THREADS)):
        threading.Thread(target=serve, daemon=True).start()
    pending = set(futures.values())
    if waiting is not None:
        pending = wait(pending, min(timeout + _GRACE, _PATIENCE)).not_done
        if pending:
            with waiting(len(futures)) as advance:
                advance(len(futures) - len(pending))
                while pending and (rest := deadline - time.monotonic()) > 0:
                    answered, pending = wait(pending, rest, FIRST_COMPLETED)
                    advance(len(answered))
    answers: Answers[T] = {}
    for peer in peers:
        future = futures[peer.address]
        limit = min(timeout, peer.limit)
        try:
            error = future.exception(max(0.0, begun + limit + _GRACE - time.monotonic()))
        except TimeoutError:
            error = NodeError(peer.program, peer.address, timed_out(limit))
            peer.slow.add(peer.address)
        answers[peer.address] = error if isinstance(error, NodeError) else future.result()
    return answers


def answer(future: "Future[T]", question: Callable[[P], T], peer: P, allowance: Allowance | None = None) -> None:
    """Puts the answer, or whatever was raised, into `future`. The answer takes `allowance`."""
    ALLOWANCE.set(allowance)
    try:
        future.set_result(question(peer))
    except BaseException as error:
        if allowance is not None:
            allowance.release()
        if isinstance(error, NodeError):  # is kept as an answer, and its traceback would keep what was read
            error.__traceback__ = error.__context__ = None
        future.set_exception(error)


def values_of(answers: Answers[T]) -> dict[Address, T]:
    return {address: answer for address, answer in answers.items() if not isinstance(answer, NodeError)}


def by_node(
    answers: Mapping[Any, T | NodeError],
    keys: Callable[[T], Mapping[str, object]] = lambda answer: {},
    failed: Mapping[str, object] = {},
) -> list[dict[str, Any]]:
    """Returns the address of each node, its error or null, and the `keys` of its answer, or these of `failed`, for
    JSON."""
    return [
        {"address": str(address)}
        | ({"error": answer.reason, **failed} if isinstance(answer, NodeError) else {"error": None, **keys(answer)})
        for address, answer in answers.items()
    ]


def rows_of(kind: Callable[..., T], answers: Answers[T]) -> list[T]:
    """Returns the answers, which are rows; for each error a row of this kind with the reason."""
    return [
        kind(str(address), result=result_of(answer), error=answer.reason) if isinstance(answer, NodeError) else answer
        for address, answer in answers.items()
    ]


def result_of(error: NodeError) -> Cell:
    return Cell(f"{error.program} {error.reason}", Tone.FAINT) if isinstance(error, NodeLacks) else failed(error.reason)


def errors_of(answers: Answers[T]) -> list[NodeError]:
    return [answer for answer in answers.values() if isinstance(answer, NodeError)]


def failures_of(answers: Answers[T]) -> list[NodeError]:
    """Returns the errors, without those of nodes that lack the ability if others have it."""
    errors = errors_of(answers)
    return [error for error in errors if len(errors) == len(answers) or not isinstance(error, NodeLacks)]
