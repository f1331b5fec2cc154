"""The API of `relattn-mt serve` on a Ray cluster, in replicas whose number follows the requests.

    pip install "./toolkit[ray,serve]"
    cd deploy && serve run ray_serve:app models=/shared/en-de,/shared/de-en threads=2 most=16

All machines must have relattn and these packages, and the models under the same paths. A replica has all models and
`threads` cores. Another one starts while replicas have more than `target` requests each, on average. It has its own
queue and its own memory, so a translated file must be downloaded from the replica that translated it: serve files with
one replica.
"""

from functools import partial

from pydantic import BaseModel
from ray import serve
from relattn_mt import load
from relattn_mt.serve.access import Access
from relattn_mt.serve.app import make_app
from relattn_mt.serve.languages import load_pairs
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from starlette.applications import Starlette


class Options(BaseModel):
    """Arguments of `serve run`."""

    models: str  # directories, separated by commas
    threads: int = 2  # per replica
    least: int = 1  # replicas
    most: int = 8
    target: int = 20  # requests per replica


def app(options: Options) -> serve.Application:
    """Return the application, which `serve run` starts."""

    def make() -> Starlette:
        translators = load_pairs(options.models.split(","), [], partial(load, threads=options.threads))
        return make_app(Router(translators, Limits()), access=Access(None))

    scaling = {"min_replicas": options.least, "max_replicas": options.most, "target_ongoing_requests": options.target}
    server = serve.deployment(
        serve.ingress(make)(),
        name="relattn",
        autoscaling_config=scaling,
        max_ongoing_requests=10 * options.target,
        ray_actor_options={"num_cpus": options.threads},
        graceful_shutdown_timeout_s=75,
    )
    return server.bind()
