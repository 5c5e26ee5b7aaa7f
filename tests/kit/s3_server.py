"""A server with the protocol of S3: moto, from PyPI. It keeps objects in memory, and answers one request at a time, so
that of two requests for the same name one is first."""

import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from kit.daemons import free_port


def set_environment() -> str:
    """Have this process and its children use a server of this machine, which need not run yet. Its address."""
    if "AWS_ENDPOINT_URL" not in os.environ:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
    return os.environ["AWS_ENDPOINT_URL"]


@contextmanager
def serving() -> Iterator[None]:
    """The server at the address of the environment, in a thread."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            pass

    port = int(set_environment().rpartition(":")[2])
    server = make_server("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_bucket(name: str) -> str:
    """Its URL."""
    urllib.request.urlopen(urllib.request.Request(f"{set_environment()}/{name}", method="PUT")).close()
    return f"s3://{name}"
