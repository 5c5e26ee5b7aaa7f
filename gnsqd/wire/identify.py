"""IDENTIFY: a client's description and requested settings, and the answer (NSQD-COMPAT section 2.4).

All connections of a program send the same body, and thousands of them may connect again at the same time. So each body
is decoded once; clients share the result, which does not change.
"""

from functools import lru_cache

from gnsqd.gotext import GoType, Struct, decode_object, dumps, format_value
from gnsqd.options import MILLISECOND, SECOND, TOPOLOGY_AWARE, Options
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import ClientError

DEFAULT_DEFLATE_LEVEL = 6
_SHARED = 1024  # bodies that are kept, and the most bytes of such a body


class Identify(Record):
    """The body of an IDENTIFY; what it leaves out is empty, 0 or false. Times are ms."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0

    def __post_init__(self) -> None:
        shown = [
            f"{_LABELS.get(name) or name.title().replace('_', '')}:{format_value(value)}"
            for name, value in vars(self).items()
        ]
        self.text = f"{{{' '.join(shown)}}}"  # in the form that the real daemon logs


class IdentifyWithTopology(Identify):
    """Adds the fields that nsq's development branch has."""

    topology_region: str = ""
    topology_zone: str = ""


_TYPES: dict[type, GoType] = {str: "string", bool: "bool", int: "int"}


_STRUCTS = {
    kind: Struct(
        "nsqd.identifyDataV2",
        {name: _TYPES[type(getattr(kind, name))] for name in kind.names} | {"sample_rate": "int32"},
    )
    for kind in (Identify, IdentifyWithTopology)
}
_LABELS = {"client_id": "ClientID", "tls_v1": "TLSv1"}


def parse_identify(body: bytes, has_topology: bool) -> Identify:
    """Decodes the body; raises ClientError for what is not a JSON object, or has a field of another type."""
    return (_parse_once if len(body) <= _SHARED else _parse)(body, has_topology)


def _parse(body: bytes, has_topology: bool) -> Identify:
    kind = IdentifyWithTopology if has_topology else Identify
    try:
        return kind(**decode_object(body, _STRUCTS[kind]))
    except ValueError as error:
        raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body", error) from error


_parse_once = lru_cache(_SHARED)(_parse)


def apply_settings(client: ClientV2, identify: Identify, options: Options) -> None:
    """Takes over what is in range, in the real daemon's order; raises ClientError at the first that isn't."""
    client.client_id = identify.client_id
    client.hostname = identify.hostname
    client.user_agent = identify.user_agent
    if isinstance(identify, IdentifyWithTopology):
        client.topology_region, client.topology_zone = identify.topology_region, identify.topology_zone
        if not client.identified and TOPOLOGY_AWARE in options.experiments:
            _locate(client, options)

    interval = identify.heartbeat_interval
    if interval == -1:
        client.heartbeat_interval = 0
    elif interval:
        client.heartbeat_interval = _time("heartbeat interval", interval, SECOND, options.max_heartbeat_interval)

    timeout = identify.output_buffer_timeout
    if timeout == -1:
        client.output_buffer_timeout = 0
    elif timeout:
        bounds = (options.min_output_buffer_timeout, options.max_output_buffer_timeout)
        client.output_buffer_timeout = _time("output buffer timeout", timeout, *bounds)

    size = identify.output_buffer_size
    if size == -1:
        client.output_buffer_size = 1
        client.output_buffer_timeout = 0
    elif size:
        client.output_buffer_size = _checked("output buffer size", size, 64, options.max_output_buffer_size)

    client.sample_rate = _checked("sample rate", identify.sample_rate, 0, 99)
    if identify.msg_timeout:
        client.msg_timeout = _time("msg timeout", identify.msg_timeout, SECOND, options.max_msg_timeout)


def _locate(client: ClientV2, options: Options) -> None:
    """Sets what nsqd counts, where no zone or region is also one that can be the same; but prefers only a real one."""
    if client.topology_region == options.topology_region:
        client.locality = 1
        client.rank = 1 if options.topology_region else 2
    if client.topology_zone == options.topology_zone:
        client.locality = 0
        client.rank = 0 if options.topology_zone else client.rank


def _time(what: str, milliseconds: int, shortest: int, longest: int) -> int:
    """Returns a time in ns; raises ClientError if it is not in the range, whose ends are ns."""
    return _checked(what, milliseconds, shortest // MILLISECOND, longest // MILLISECOND) * MILLISECOND


def _checked(what: str, value: int, lowest: int, highest: int) -> int:
    """Returns `value`; raises ClientError if it is not in the range."""
    if not lowest <= value <= highest:
        reason = f"{what} ({value}) is invalid"
        raise ClientError("E_BAD_BODY", f"IDENTIFY {reason}", ValueError(reason))
    return value


def negotiate(client: ClientV2, identify: Identify, tls: bool, options: Options) -> tuple[bytes, bool, int]:
    """Reduces the compression that `identify` asks for to what we allow; raises ClientError if that is two. Returns the
    answer to feature negotiation, whether snappy is used, and the level of deflate, 0 if that is not used."""
    snappy = options.snappy and identify.snappy
    deflate = options.deflate and identify.deflate
    if deflate and snappy:
        raise ClientError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = identify.deflate_level if deflate and identify.deflate_level > 0 else DEFAULT_DEFLATE_LEVEL
    level = min(level, options.max_deflate_level)
    settings = (client.msg_timeout, client.sample_rate, client.output_buffer_size, client.output_buffer_timeout)
    return _answer(options, tls, deflate, level, snappy, *settings), snappy, level if deflate else 0


@lru_cache
def _answer(options: Options, tls: bool, deflate: bool, level: int, snappy: bool, *settings: int) -> bytes:
    """Returns the JSON: clients see the keys in this order, and the level also without deflate."""
    msg_timeout, sample_rate, output_buffer_size, output_buffer_timeout = settings
    topology = {"topology_region": options.topology_region, "topology_zone": options.topology_zone}
    return dumps(
        {
            "max_rdy_count": options.max_rdy_count,
            "version": NSQD_VERSION,
            "max_msg_timeout": options.max_msg_timeout // MILLISECOND,
            "msg_timeout": msg_timeout // MILLISECOND,
            "tls_v1": tls,
            "deflate": deflate,
            "deflate_level": level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": snappy,
            "sample_rate": sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": output_buffer_size,
            "output_buffer_timeout": output_buffer_timeout // MILLISECOND,
            **(topology if options.has_topology else {}),
        }
    ).encode()
