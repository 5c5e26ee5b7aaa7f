"""TLS as the options want it."""

import ssl

from gnsq_shared.client import reason
from pyspark_nsq.errors import NotAgreed
from pyspark_nsq.settings import ConnectionSettings


def tls_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """For connections to nsqds; NotAgreed if this machine doesn't have the files, or they are not certificates."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as error:
        raise NotAgreed(f"option 'nsq.tls.ca', {settings.tls_ca!r}: {reason(error)}") from None
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_certificate:
        try:
            # Without a password of ours OpenSSL would ask for one at the terminal.
            context.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
        except OSError as error:
            files = " and ".join(repr(file) for file in (settings.tls_certificate, settings.tls_key) if file)
            raise NotAgreed(f"options 'nsq.tls.certificate' and 'nsq.tls.key', {files}: {reason(error)}") from None
    return context
