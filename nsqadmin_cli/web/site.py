"""The site that views and actions share: the cluster, its Monitor, permissions, results of actions, and templates."""

import re
import secrets
from collections import OrderedDict
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gnsqd.shared.version import VERSION
from gnsqd.web.routes import Role
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.errors import NotOnNode
from nsqadmin_cli.message import clock
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.units import duration, plural, printable, rate
from nsqadmin_cli.web import present
from nsqadmin_cli.web.http import PageRequest
from nsqadmin_cli.web.monitor import FRESH, SHARED, Monitor
from nsqadmin_cli.web.security import Security
from nsqadmin_cli.web.tail import Tails

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_RESULTS = 64
_LONGEST = 100_000  # characters of one text
_LOCAL = re.compile(r'\s(?:href|(?:form)?action|src)="(?=/)')


class Multiline(str):
    """A text whose line ends are kept."""

    __slots__ = ()


class Exact(str):
    """A text that is sent back as it is."""

    __slots__ = ()


def _text(value: object) -> object:
    """Returns a text without control characters and others that could deceive; markup, which lacks them, as it is."""
    if type(value) is Multiline:
        return Multiline("\n".join(printable(line, _LONGEST) for line in value.split("\n")))
    return printable(value, _LONGEST) if type(value) is str else value


class Page:
    def __init__(self, template: str, status: int = 200, **values: Any) -> None:
        self.template, self.status, self.values = template, status, values


class PageSite:
    """One page of one cluster; threads share it."""

    def __init__(self, cluster: Cluster, monitor: Monitor, security: Security, grafana_url: str, base: str) -> None:
        self.grafana_url = grafana_url
        self.base = base
        self.cluster = cluster
        self.monitor = monitor
        self.security = security
        self.tails = Tails(cluster)
        self._results: OrderedDict[str, Page | str] = OrderedDict()

    def acting(self, authorization: str) -> "PageSite":
        """Returns the same site for one user: all that is not the Monitor's is asked with the user's own token."""
        _ = self._environment  # shared
        site = copy(self)
        site.cluster = self.cluster.acting(authorization)
        return site

    def snapshot(self, request: PageRequest) -> ClusterSnapshot:
        """Returns the latest state of all nodes, shared by all live pages."""
        return self.monitor.snapshot(SHARED if request.is_live else FRESH)

    def node(self, address: str) -> Nsqd:
        """Returns the node with this address; raises NotFound if there is none, AdminError if no nsqlookupd answers."""
        for node in self.cluster.nsqds():
            if str(node) == address:
                return node
        raise NotOnNode(f"no node has the address {printable(address, 100)}")

    def keep(self, result: Page | str) -> str:
        """Keeps the result of an action, and returns its name in addresses, so that loading one does nothing again."""
        name = secrets.token_urlsafe(9)
        self._results[name] = result
        while len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)
        return name

    def kept(self, name: str) -> Page | str | None:
        return self._results.get(name)

    @cached_property
    def _environment(self) -> "Environment":
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("nsqadmin_cli.web"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
            finalize=_text,
        )
        environment.globals["version"] = VERSION
        for function in (present.address_of, present.node_address, present.query, clock, duration, plural, rate):
            environment.globals[function.__name__] = function
        return environment

    def render(self, request: PageRequest, page: Page) -> bytes:
        template = self._environment.get_template(page.template)
        return self._at_base(template.render(self._values(request, page))).encode("utf-8", "replace")

    def render_live(self, request: PageRequest, page: Page) -> str:
        template = self._environment.get_template(page.template)
        context = template.new_context(self._values(request, page))
        return self._at_base("".join(template.blocks["live"](context)))

    def _at_base(self, markup: str) -> str:
        """Adds the base path to the addresses of this site. In templates, each begins with a slash, in one of these
        attributes. All else is escaped: no name or message contains a quotation mark."""
        return _LOCAL.sub(rf"\g<0>{self.base}", markup) if self.base else markup

    def _values(self, request: PageRequest, page: Page) -> dict[str, Any]:
        notice = self.kept(request.query.get("notice", ""))
        shared = {
            "title": "",
            "notice": notice if isinstance(notice, str) else "",
            "here": f"/{request.segments[0]}" if request.segments else "/",
            "base": self.base,
            "may_change": self.security.may_change(request),
            "may_peek": self.security.role(request) is Role.FULL,
            "read_only": self.security.read_only,
            "has_tokens": self.security.has_tokens,
            "has_lookupds": bool(self.cluster.lookupds),
            "grafana_url": self.grafana_url,
        }
        # Not imported in the templates, whose blocks are also rendered alone. A sum has a mark where a node is missing.
        macros = self._environment.get_template("macros.html").make_module({"sums": page.values.get("sums")})
        return shared | page.values | {"m": macros}
