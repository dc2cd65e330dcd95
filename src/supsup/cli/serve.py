"""`supsup serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from supsup import SupSupError
from supsup.cli.console import escape_for_terminal, interruptible, say
from supsup.cli.networks import UserNet, user_network
from supsup.inference.methods import MethodName


def serve_command(
    model: Annotated[Path, Argument(help="The model file. Tasks learned here are saved to it at once.")],
    port: Annotated[int, Option(help="Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[
        str, Option(help="Address to listen on. Any but 127.0.0.1 needs a token or --read-only.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        Option(
            envvar="SUPSUP_TOKEN",
            show_envvar=True,
            help="Token required to learn or forget. The variable keeps it out of the process list.",
        ),
    ] = None,
    read_only: Annotated[
        bool, Option("--read-only", help="Predictions only: the file is opened for reading and not locked.")
    ] = False,
    masks: Annotated[
        Literal["memory", "disk"],
        Option(help="Where to keep masks. On disk, several servers of one file share them (with --device cpu)."),
    ] = "memory",
    max_batch: Annotated[int, Option(help="Maximum batch size, in images.")] = 256,
    method: Annotated[
        MethodName | None, Option(help="How this server infers the task; the file keeps its setting.")
    ] = None,
    net: UserNet = None,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Serve a model over HTTP, with a web page.

    The page is at http://127.0.0.1:8000 by default. POST /predict classifies images, with the task given or not. GET
    /tasks lists the tasks, POST /tasks/NAME learns one from images, DELETE /tasks/NAME forgets it. GET /health and
    /metrics are for monitoring. docs/serve.md has examples. Requests that arrive together share a batch, also while a
    task is being learned.

    Ctrl-C stops the server: requests in progress finish, and every task reported as learned is in the file.
    """
    try:
        from supsup.serve.app import ModelServer
        from supsup.serve.server import ServerSettings, listen, run_server, url_of
        from supsup.serve.service import ModelService
    except ModuleNotFoundError as error:
        raise SupSupError(f"serving needs the package {error.name}: pip install 'supsup[serve]'") from error
    settings = ServerSettings(host=host, port=port, token=token, read_only=read_only, max_batch=max_batch)
    listening = listen(settings)
    with interruptible("the server had not started"), listening:
        own = user_network(net, model)
        service = ModelService.open(model, own, read_only=read_only, masks=masks, device=device, method=method)
        info = service.info()

        def ready() -> None:
            where = f"[bold]{url_of(listening)}[/]"
            say(f"{escape_for_terminal(model)}: {info['tasks']:,} tasks on {info['device']}, at {where}")
            say(_access(settings.local, settings.token is not None, read_only))

        run_server(ModelServer(service, settings).app(), listening, ready)
    say(f"stopped; {escape_for_terminal(model)} has {len(service.model.tasks):,} tasks")


def _access(local: bool, token: bool, read_only: bool) -> str:
    """Who can do what, in a sentence."""
    reach = "reachable from this machine only" if local else "anyone who can reach this machine can predict"
    if read_only:
        return f"{reach}; the model cannot be changed. Press Ctrl-C to stop"
    change = "learning and forgetting need the token" if token else "no token: any program here can change the model"
    return f"{reach}; {change}. Press Ctrl-C to stop"
