"""A server of the tests' own, on a free port of this computer."""

import contextlib
import threading
from http.server import ThreadingHTTPServer


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # a client that went away, and connections that were cut
        pass


@contextlib.contextmanager
def served(handler):
    """The address of a server of this handler class, while it runs."""
    server = _Quiet(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
