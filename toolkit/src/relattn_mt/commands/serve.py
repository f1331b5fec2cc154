"""`relattn-mt serve`"""

import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from relattn_mt.commands.options import DeviceOptions, SearchOptions
from relattn_mt.firefox import PIVOT, is_name
from relattn_mt.hub import name_on_hub, resolve_route
from relattn_mt.serve.access import check_access
from relattn_mt.serve.limits import Limits
from relattn_mt.support.errors import EXTRAS, install_command, require


def serve(
    models: list[str],
    *,
    host: str = "127.0.0.1",
    port: int = 5000,
    languages: list[str] = [],  # noqa: B006
    pivot: str = "",
    keys: str = "",
    hosts: list[str] = [],  # noqa: B006
    cors: list[str] = [],  # noqa: B006
    proxies: list[str] = ["127.0.0.1", "::1"],  # noqa: B006
    limits: Limits = Limits(),  # noqa: B008
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Serve models over HTTP with the API of LibreTranslate, and a web page to translate on.

    Ctrl-C, SIGTERM or SIGHUP stops the server after it has answered the requests that it accepted. Files that are being
    translated end with an error.

    Args:
        models: Directory of a bundle, or name of a model: everyday-en-de, org/name on the hub, or Firefox's, as
            firefox:en-de. One model per language pair.
            A model of several languages serves all pairs among them, or among --languages.
        host: Address to listen on. 0.0.0.0 accepts connections from other machines.
        port: Port to listen on. 0 chooses a free port.
        languages: Languages to serve, of models of several languages. By default all.
        pivot: Language to translate through if no model translates a pair directly. By default none.
        keys: File of API keys, one per line. Requests without one of them are refused. By default, no key is needed.
        hosts: Names that the header Host of a request may have, or * for all. IP addresses and localhost are always
            accepted. By default, a server on an address such as 127.0.0.1, which only this machine can reach, accepts
            other names from a proxy only, and any other server accepts all.
        cors: Origins whose web pages may use the server, or * for all. By default none.
        proxies: Addresses or networks of proxies in front of the server, or * for all. The server takes the address of
            the client, and whether it uses HTTPS, from their headers X-Forwarded-For and X-Forwarded-Proto.
    """
    require(0 <= port <= 65535, f"port must be at least 0 and at most 65,535, got {port}")
    check_access(hosts, cors, proxies)
    routes = {model: resolve_route(model) for model in models if not name_on_hub(model)[0]}
    missing = [model for model, route in routes.items() if not route[0].exists()]
    require(not missing, f"{' '.join(missing)}: no such directory; a bundle is a directory")
    for model in filter(is_name, [*models]):
        paths = [str(path) for path in routes[model]]
        models = [name for name in models if name not in (model, *paths)] + paths
        pivot = pivot or (PIVOT if len(paths) > 1 else "")
    packages = *EXTRAS["documents"], *EXTRAS["serve"]
    lacking = [package for package in packages if find_spec(package) is None]  # some are imported when first needed
    require(not lacking, f"{' '.join(lacking)} cannot be imported: {install_command('serve')}")

    from relattn_mt.serve.languages import load_pairs
    from relattn_mt.serve.routing import Router
    from relattn_mt.serve.server import serve as run
    from relattn_mt.translate.translator import Translator

    def load(model: str) -> Translator:
        translator = device.load(model)
        return replace(translator, search=search.override(translator))

    translators = load_pairs(models, languages, load)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # uvicorn sends it again after a graceful shutdown
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # uvicorn does not handle it
    router = Router(translators, limits, pivot=pivot)
    run(router, host=host, port=port, keys=Path(keys) if keys else None, hosts=hosts, cors=cors, proxies=proxies)
