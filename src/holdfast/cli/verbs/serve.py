"""`holdfast serve DIR`: the log over HTTP, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli.exit_codes import FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_served, owned
from holdfast.cli.output import emit_json, flush, say
from holdfast.errors import Invalid

EPILOG = """\b
Examples:
  holdfast serve data
  holdfast serve data --listen 0.0.0.0:7474 --tls-certificate cert.pem --tls-key key.pem
  curl -d '{"payload": "hello"}' -H 'content-type: application/json' http://127.0.0.1:7474/v1/topics/t/records
Beyond loopback it needs tokens: holdfast token create. All limits are settings under [server]."""


class ServingLine(msgspec.Struct, frozen=True):
    """What is served where, for JSON."""

    url: str
    """Where it answers."""
    log: str
    """The log's id."""
    tokens: bool
    """Whether requests need one."""
    pid: int
    """The process."""


@click.command("serve", epilog=EPILOG)
@directory_argument
@click.option(
    "--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes any.  [env: HOLDFAST_SERVER__LISTEN]"
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name that requests may use for this server, beside those of the address; may be repeated.",
)
@click.option("--tokens", type=click.Path(path_type=Path), help="The file of tokens; default: TOKENS in DIR.")
@click.option(
    "--no-tokens", is_flag=True, help="Serve without tokens a log that had some, to everybody on this machine."
)
@click.option("--token", metavar="REF", help="One more token, with all rights: env:NAME or file:PATH, never a token.")
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="The certificate chain, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key, in PEM, without a password.")
@click.option("--console/--no-console", default=None, help="Whether GET / answers with a page that shows the log.")
@click.option(
    "--share/--no-share",
    default=True,
    help="Share the log with processes that open it with share=True, or own it alone.",
)
@keyring_option
@json_option
def serve_command(
    directory: Path,
    listen: str | None,
    hosts: tuple[str, ...],
    tokens: Path | None,
    no_tokens: bool,
    token: str | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    console: bool | None,
    share: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Serve the log in DIR over HTTP."""
    import os

    try:
        from holdfast.server.serving import HttpServer
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "httptools"):
            raise
        raise Invalid("serving needs an extra", hint="pip install 'holdfast-log[server]'") from None

    settings = Settings.load()
    given = {
        "listen": listen,
        "hosts": ",".join(hosts) or None,
        "tokens": tokens and str(tokens),
        "token": token,
        "tls_certificate": tls_certificate and str(tls_certificate),
        "tls_key": tls_key and str(tls_key),
        "console": console,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    own = msgspec.structs.replace(settings.server, **chosen)
    settings = msgspec.structs.replace(settings, server=own)
    with open_served(directory, reference, settings, share=share) as opened:
        log = owned(opened)
        server = HttpServer(log, own, no_tokens=no_tokens)

        def started() -> None:
            if as_json:
                emit_json(ServingLine(server.url, log.id, server.access.is_needed, os.getpid()))
                flush()
            who = "with tokens" if server.access.is_needed else "to everybody on this machine"
            say(f"serving {directory} at {server.url} {who}; Ctrl-C ends it")
            if server.is_exposed:
                say("warning: without TLS, tokens and records cross the network in the clear")

        server.run(started)
        say("shutting down: closing the log")
    say("closed")
    return FINE
