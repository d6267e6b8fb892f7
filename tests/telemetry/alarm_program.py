"""Programs with an alarm and some way of (not) configuring logging, as `test_alarms` starts them."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import holdfast


def alarm(place: str) -> None:
    """A log that was shipped, opened without its store: nothing of it is shipped any more."""
    with holdfast.open(place) as log:
        log.topic("orders").append(b"4111-1111")


def store_away(place: str) -> None:
    """A log that is closed while its store is away: what it has is not there."""
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="sesame-secret", AWS_REGION="us-east-1")
    settings = {"shipping": {"drain_timeout_ms": 200}, "store": {"endpoint": "http://127.0.0.1:9"}}
    log = holdfast.open(f"{place}-new", store="s3://bucket/prefix", settings=settings)
    log.topic("orders").append(b"4111-1111")
    log.close()


def plain(place: str) -> None:
    alarm(place)


def configured_later(place: str) -> None:
    """The application's handler hears it, and stderr is not talked to twice."""
    with holdfast.open(f"{place}-first") as log:
        log.topic("orders").append(b"x")
    logging.basicConfig(stream=sys.stdout, format="app: %(message)s")
    alarm(place)


def no_propagation(place: str) -> None:
    logging.getLogger("holdfast").propagate = False
    logging.basicConfig(stream=sys.stdout, format="app: %(message)s")
    alarm(place)


def child_without_propagation(place: str) -> None:
    logging.getLogger("holdfast.shipping").propagate = False
    alarm(place)


def silenced(place: str) -> None:
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    alarm(place)


def disabled(place: str) -> None:
    logging.disable(logging.CRITICAL)
    alarm(place)


def dict_config(place: str) -> None:
    """As the reference says it should be done."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"app": {"format": "app: %(message)s"}},
            "handlers": {"app": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "app"}},
            "root": {"handlers": ["app"]},
        }
    )
    alarm(place)


def in_a_loop(place: str) -> None:
    async def main() -> None:
        await asyncio.to_thread(alarm, place)

    asyncio.run(main())


def in_a_worker(place: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(alarm, place).result()


def in_a_forked_child(place: str) -> None:
    child = os.fork()
    if child == 0:
        alarm(place)
        sys.stderr.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def closed_stderr(place: str) -> None:
    """There is nobody to tell: the log goes on, and nothing is raised."""
    sys.stderr.close()
    alarm(place)
    print("went on")


def broken_stderr(place: str) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise RuntimeError(text)

        def flush(self) -> None:
            raise RuntimeError

    whole, sys.stderr = sys.stderr, Broken()  # type: ignore[assignment]
    alarm(place)
    sys.stderr = whole
    print("went on")


def raising_handler(place: str) -> None:
    """An application's own handler that raises: a group that is refused is refused, and the next one is stored."""
    from holdfast.errors import Unavailable

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("a handler of the application")

    with holdfast.open(f"{place}-new") as log:
        orders, backend = log.topic("orders"), log._journal._backend
        orders.append(b"one")
        logging.getLogger("holdfast").addHandler(Raising())
        plain, backend.filed.append_group = backend.filed.append_group, _full
        try:
            orders.append(b"two")
        except Unavailable:
            print("refused")
        backend.filed.append_group = plain
        print("stored at", orders.append(b"three").offset)
        logging.getLogger("holdfast").handlers.pop()


def _full(*_: object) -> None:
    from holdfast.errors import Unavailable

    raise Unavailable("the disk is full", hint="free some space")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    globals()[sys.argv[2]](str(place))
