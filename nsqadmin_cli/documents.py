"""What --json prints of statistics: dicts with the keys of nsqd's /stats, in their order."""

from typing import Any

from nsqadmin_cli.address import Address
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.look import Look
from nsqadmin_cli.models import ChannelStats, ClientStats, Latency, NodeStats, TopicStats, as_json


def stats_document(seen: Look) -> dict[str, Any]:
    """Nodes, sums and flows, as `gnsqadmin stats --help` tells."""
    nodes = []
    unknown = dict.fromkeys(("version", "health", "start_time"), None) | {"topics": [], "producers": None}
    for address, answer in seen.answers.items():
        if isinstance(answer, NodeError):
            nodes.append({"address": str(address), "error": answer.reason} | unknown)
        else:
            nodes.append({"address": str(address), "error": None} | model_document(answer))
    flows = seen.flows and [
        {"topic": topic, "channel": channel, "ingress_rate": flow.ingress, "egress_rate": flow.egress}
        for (topic, channel), flow in seen.flows.items()
    ]
    return {"time": seen.clock, "nodes": nodes, "totals": seen.totals.as_json(), "flows": flows}


def model_document(model: NodeStats | TopicStats | ChannelStats | ClientStats | Latency) -> dict[str, Any]:
    """The fields of a model."""
    found = as_json(model)
    assert isinstance(found, dict)
    return found


def client_document(client: ClientStats, address: Address) -> dict[str, Any]:
    """A client and the node that it is at."""
    return {"node": str(address)} | model_document(client)
