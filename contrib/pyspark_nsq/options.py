"""From the options of Spark to the settings of a reader or writer.

An option that does not exist, belongs to another use, has a wrong value or contradicts another one is an OptionError,
raised where a reader or writer is made, so before any job starts.
"""

from collections.abc import Mapping
from typing import Any

from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_table import SourceOption, missing, read_values, table_of
from pyspark_nsq.settings import READ_STREAM, READERS, Address, ConnectionSettings, Settings

__all__ = ["OPTIONS", "Address", "ConnectionSettings", "Settings", "SourceOption", "check_load", "parse"]

OPTIONS = table_of(Settings)


def parse(options: Mapping[str, str], use: str) -> Settings:
    """The settings for "read", "readStream", "write" or "writeStream"; OptionError for what cannot be obeyed."""
    values = _read(options, (use,))
    if use in READERS:
        _check_spool(values, use)
    prefix = "connection."
    connection = {name.removeprefix(prefix): values.pop(name) for name in list(values) if name.startswith(prefix)}
    return Settings(**values, connection=ConnectionSettings(**connection))


def check_load(options: Mapping[str, str]) -> None:
    """OptionError for what can be obeyed by neither read nor readStream: `load()` does not know which it will be."""
    _read(options, READERS)


def _read(options: Mapping[str, str], uses: tuple[str, ...]) -> dict[str, Any]:
    values = read_values(options, uses, OPTIONS)
    if "lookupd_http_addresses" not in values and "nsqd_tcp_addresses" not in values:
        if "nsqd_http_addresses" in values:
            raise OptionError(
                "option 'nsq.nsqd.http.addresses' belongs to 'nsq.nsqd.tcp.addresses', which is not given"
            )
        raise missing("'nsq.lookupd.http.addresses' or 'nsq.nsqd.tcp.addresses'", options)
    _check_addresses(values)
    _check_tls(values)
    for field, name in (("topics", "subscribe"), ("channel", "channel")):
        if set(uses) <= set(READERS) and field not in values:
            raise missing(repr(name), options)
    return values


def _check_addresses(values: Mapping[str, Any]) -> None:
    lookupds, tcp = values.get("lookupd_http_addresses"), values.get("nsqd_tcp_addresses")
    http = values.get("nsqd_http_addresses")
    if http and not tcp:
        raise OptionError("option 'nsq.nsqd.http.addresses' belongs to 'nsq.nsqd.tcp.addresses', which is not given")
    if lookupds and tcp:
        raise OptionError(
            "options 'nsq.lookupd.http.addresses' and 'nsq.nsqd.tcp.addresses' contradict each other: "
            "expected one of them"
        )
    if tcp and http and len(tcp) != len(http):
        raise OptionError(
            f"options 'nsq.nsqd.tcp.addresses' and 'nsq.nsqd.http.addresses' have {len(tcp)} and {len(http)} "
            "addresses: expected one for each nsqd, in the same order"
        )


def _check_tls(values: dict[str, Any]) -> None:
    """Also switches TLS on where an option implies it."""
    implied = [row.name for row in OPTIONS if row.field in values and row.field.startswith("connection.tls_")]
    if implied and not values.setdefault("connection.tls", True):
        raise OptionError(f"option {implied[0]!r} contradicts 'nsq.tls.enabled', which is false")
    if "connection.tls_key" in values and "connection.tls_certificate" not in values:
        raise OptionError("option 'nsq.tls.key' belongs to 'nsq.tls.certificate', which is not given")
    if "connection.tls_ca" in values and not values.get("connection.tls_verify", True):
        raise OptionError("option 'nsq.tls.ca' contradicts 'nsq.tls.verify', which is false: nothing would look at it")


def _check_spool(values: dict[str, Any], use: str) -> None:
    """Also switches the spool off for a read that only looks."""
    spooling = ("spool_location", "spool_retention", "spool_max_bytes", "dedup_retention")
    given = [row.name for row in OPTIONS if row.field in spooling and row.field in values]
    if values.get("peek"):
        values["spool"] = False
    elif not values.get("spool", True):
        if given:
            raise OptionError(f"option {given[0]!r} contradicts 'spool', which is off")
    elif "spool_location" not in values:
        if use == READ_STREAM:
            raise OptionError(
                "option 'spoolLocation' is required: a directory that driver and executors share, where messages wait "
                "until Spark has committed them. ('spool' = 'off' does without, and loses messages when a task or the "
                "driver dies.)"
            )
        raise OptionError(
            "option 'spoolLocation' is required: a directory that driver and executors share, from which every action "
            "on the frame gets the same messages. ('peek' = 'true' only looks at messages. 'spool' = 'off' does "
            "without, and loses messages whenever Spark scans the frame twice or not to its end, as show, sort, join "
            "and union do.)"
        )
