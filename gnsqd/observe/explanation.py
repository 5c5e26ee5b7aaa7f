"""The text of /queues: what each topic and channel holds, and why nobody gets it, for somebody whose test or consumer
waits. The advice is that of `gnsqadmin doctor`, which watches a cluster for some seconds."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from time import localtime, monotonic_ns, strftime, time

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import Turns
from gnsqd.options import SECOND
from gnsqd.shared import statistics as advice

MOST = 100  # queues that are shown, and names that may be meant by another
_ALIKE = 0.8  # from 0 to 1

Explanation = tuple[list[str], str]  # facts, and advice or ""


def explain(registry: Registry, msg_timeout: int) -> Iterator[str]:
    """Yields a line for each channel, and for topics that hold messages, are paused or have no channel. Advice is in a
    line of its own. Ends after MOST queues. May switch to other greenlets."""
    if not registry.healthy:
        yield f"the last write to disk failed: {registry.health}"
    if registry.draining:
        yield "draining: no new messages are accepted"
    if not registry.topics:
        yield "no topics"
    for name, (facts, text) in Turns().over(islice(_queues(registry, msg_timeout), MOST)):
        yield f"{name}: {', '.join(facts)}"
        if text:
            yield f"    {text}"


def _queues(registry: Registry, msg_timeout: int) -> Iterator[tuple[str, Explanation]]:
    for name, topic in sorted(registry.topics.items()):
        facts = [f"{topic.depth:,} queued" if topic.depth else "empty"]
        if not topic.channels:
            others = (other.name for other in registry.topics.values() if other.channels)
            yield name, ([*facts, f"no channel{_proposal(name, others)}"], f"{advice.NO_CHANNEL}." * bool(topic.depth))
        elif topic.depth or topic.paused:
            yield name, (facts + ["paused: its channels get no messages"] * topic.paused, "")
        for channel_name, channel in sorted(topic.channels.items()):
            others = (other.name for other in topic.channels.values() if other.clients)
            proposal = "" if channel.clients else _proposal(channel_name, others, f"{name}/")
            yield f"{name}/{channel_name}", _explain(channel, msg_timeout, proposal)


def _explain(channel: Channel, msg_timeout: int, proposal: str) -> Explanation:
    depth, in_flight, deferred, now = channel.depth, len(channel.in_flight), len(channel.deferred), monotonic_ns()
    facts = [f"{depth:,} queued"] if depth else [] if in_flight or deferred else ["empty"]
    delivered, timeout = channel.in_flight.longest() if in_flight else (now, 0)
    if in_flight:
        which = "1 message in flight" if in_flight == 1 else f"{in_flight:,} messages in flight, the first"
        whose = "--msg-timeout" if timeout == msg_timeout else "msg_timeout of its consumer, or of TOUCH"
        facts.append(f"{which} for {_seconds(now - delivered)} of {_seconds(timeout)} {whose}")
    if deferred:
        left = max(0, channel.deferred.next_due - now)
        until = strftime("%H:%M:%S", localtime(time() + left / SECOND))
        facts.append(f"{deferred:,} deferred{', the first' * (deferred > 1)} until {until} (in {_seconds(left)})")
    counts = {"requeued": channel.requeue_count, "timed out": channel.timeout_count, "finished": channel.finish_count}
    facts += [f"{count:,} {what}" for what, count in counts.items() if count]
    ready = sorted(client.ready_count for client in channel.clients.values())
    if ready:
        rdy = f"{ready[0]}" if ready[0] == ready[-1] else f"{ready[0]} to {ready[-1]}"
        facts.append(f"{len(ready):,} consumer{'s' * (len(ready) > 1)} at RDY {rdy}")
    else:
        facts.append(f"no consumer{proposal}")
    if channel.paused:
        return [*facts, f"paused: {advice.PAUSED}"], ""
    causes = {
        "": not (depth or in_flight or deferred),
        advice.START_CONSUMERS: not ready,
        advice.RDY_ZERO: not any(ready),
        advice.REQUEUED: channel.requeue_count > channel.finish_count,
        advice.TIMED_OUT: channel.timeout_count > 0,
        f"{advice.HANGS}.": now - delivered > SECOND,
    }
    return facts, next((text for text, applies in causes.items() if applies), "")


def _proposal(name: str, others: Iterable[str], prefix: str = "") -> str:
    """Returns the one of `others`, which are served, that may be meant by `name`."""
    near = get_close_matches(name, list(islice(others, MOST)), 1, _ALIKE)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


def _seconds(ns: int) -> str:
    return f"{round(ns / SECOND, 1):g} s"
