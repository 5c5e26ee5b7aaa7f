"""Finds the problems of a config file, without starting anything and without the data path.

They are what the start refuses or ignores, with its texts: each of them, and not only the first. Addresses are bound
for a moment, so those of a daemon that runs are taken.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from gnsqd.broker.rules import parse_option
from gnsqd.configuration import BadValue, load_file, unknown_keys
from gnsqd.log import Level, Logger
from gnsqd.net import tls
from gnsqd.net.addresses import unix_name
from gnsqd.net.certificates import Loaded
from gnsqd.net.listener import Listener, is_stale
from gnsqd.options import LookupdOptions, Option, Options, choice_checks, demo_checks, early_checks, late_checks
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.web.http_auth import Tokens, parse_common_names
from gnsqd.web.server import parse_origin

Resolve = Callable[[Mapping[str, Any], Mapping[str, Any]], Options | LookupdOptions]

_UNIX = ("tcp_address", "http_address")  # of nsqd may be paths
_EMBEDDED = ("embedded_lookupd_tcp_address", "embedded_lookupd_http_address", "admin_http_address")
_LISTENING = (*_UNIX, "https_address", *_EMBEDDED)


def find_problems(path: str, table: Sequence[Option], resolve: Resolve) -> list[str]:
    """Returns a text for each problem of the file at `path`, once."""
    try:
        config = load_file(path)
    except StartError as error:
        return [str(error)]
    problems = list(unknown_keys(config, table))
    valid: dict[str, Any] = {}
    for option in table:
        if option.cfg and option.cfg in config:
            row = {option.cfg: config[option.cfg]}
            refusals = list(_refusals(resolve, {}, row))
            problems += refusals
            valid |= {} if refusals else row
    options = resolve({}, valid)
    problems += _failed(choice_checks(options, table))
    if isinstance(options, Options):
        problems += _problems_of_nsqd(options)
    for origin in options.http_allow_origins:
        problems += _refusals(parse_origin, origin)
    problems += _refused_addresses(options, [name for name in _LISTENING if name in valid or name not in config])
    return list(dict.fromkeys(problems))


def _problems_of_nsqd(options: Options) -> Iterator[str]:
    yield from _failed(chain(demo_checks(options), early_checks(options), late_checks(options)))
    loaded: list[Any] = []
    readers = (tls.build_context, tls.read_client_roots)
    refusals = [text for read in readers for text in _refusals(lambda read=read: loaded.append(read(options)))]
    yield from {text.partition(" - ")[2]: text for text in reversed(refusals)}.values()  # both read the roots
    if not refusals:
        yield from Loaded(options, *loaded).expired()
    if options.log_store:
        yield from _refusals(_try_store, options.log_store)
    for text in options.channel_rules:
        yield from _refusals(parse_option, [text])
    for name in options.http_auth_common_names:
        yield from _refusals(parse_common_names, [name], options.tls_client_auth_policy)
    verified = options.tls_client_auth_policy == "require-verify"
    for source in options.http_auth_token_files:
        yield from _refusals(partial(Tokens, verified=verified), [source], Logger("", Level.FATAL))


def _try_store(url: str) -> None:
    """Raises StorageError unless the store answers what this nsqd would ask first."""
    from gnsqd.shared.log_store import LogStore, wal_path  # few have one

    LogStore(url).size(wal_path(1))


def _refused_addresses(options: Options | LookupdOptions, names: Sequence[str]) -> Iterator[str]:
    """Yields a text for each address that cannot be bound, also because another option has it."""
    with ExitStack() as listening:
        for name in names:
            address = getattr(options, name, "")
            if not address or (name == "https_address" and not getattr(options, "tls_cert", "")):
                continue
            tcp_only = name not in _UNIX or isinstance(options, LookupdOptions)
            if not tcp_only and is_stale(unix_name(address)):
                continue  # a start replaces it
            try:
                listening.callback(Listener(address, tcp_only=tcp_only).close)
            except StartError as error:
                yield f"{name}: {error}"


def _failed(checks: Iterator[tuple[bool, str]]) -> list[str]:
    return [text for valid, text in checks if not valid]


def _refusals(start: Callable[..., object], *arguments: object) -> Iterator[str]:
    try:
        start(*arguments)
    except (StartError, StorageError, BadValue) as error:
        yield str(error)
