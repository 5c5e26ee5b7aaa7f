"""The options of `format("nsq")` that name daemons, and bodies that are all different."""

from kit.daemons import Instance


def daemon_options(*daemons: Instance) -> dict[str, str]:
    """Returns the options of a reader that name these daemons, whatever their HTTP ports are."""
    http = ",".join("{}:{}".format(*daemon.http_address) for daemon in daemons)
    return {**sink_options(*daemons), "nsq.nsqd.http.addresses": http}


def sink_options(*daemons: Instance) -> dict[str, str]:
    """Returns the options of a writer that name these daemons."""
    return {"nsq.nsqd.tcp.addresses": ",".join(name(daemon) for daemon in daemons)}


def name(daemon: Instance) -> str:
    """Returns what the column `nsqd` has for a daemon that was named by its address."""
    return "{}:{}".format(*daemon.tcp_address)


def bodies(count: int, prefix: str = "") -> list[bytes]:
    return [b"%s%d" % (prefix.encode(), number) for number in range(count)]
