"""An HTTP double that answers while a test runs, on a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

# The standard library looks every half second whether it is to stop: half a second for each test that ends.
_POLL_S = 0.01

Server = TypeVar("Server", bound=HTTPServer)


@contextmanager
def answering(server: Server) -> Iterator[Server]:
    """Serve until the block ends.

    Args:
        server: bound, not yet serving.

    Yields:
        The same server.
    """
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
