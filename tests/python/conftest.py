import pytest
from octavo_server import Server


@pytest.fixture(scope="session")
def server():
    """A server as it is without options, for tests that need no other."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def both():
    """The same server with both back ends, by name."""
    servers = {name: Server("--kv-backend", name) for name in ("paged", "contiguous")}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(params=["paged", "contiguous"])
def either(both, request):
    """Each back end in turn: the API is the same."""
    return both[request.param]


@pytest.fixture
def start():
    """Starts servers with options of their own; those still running at the end of the test must end well."""
    servers = []

    def start(*options):
        servers.append(Server(*options))
        return servers[-1]

    yield start
    try:
        for server in servers:
            if server.process.poll() is None:
                server.stop()
    finally:
        for server in servers:
            server.kill()
