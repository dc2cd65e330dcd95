"""`supsup serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from supsup.cli.console import escape_for_terminal, interruptible, say
from supsup.inference.methods import Method
from supsup.runtime.errors import SupSupError


def serve(
    model: Annotated[Path, Argument(help="A model file; tasks learned here are committed to it at once.")],
    port: Annotated[int, Option(help="The port to listen on; 0 takes any that is free.")] = 8000,
    host: Annotated[
        str, Option(help="The address to listen on. Any but 127.0.0.1 needs a token, or --read-only.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        Option(
            envvar="SUPSUP_TOKEN",
            show_envvar=True,
            help="What requests that learn or forget must show. The variable keeps it out of the list of processes.",
        ),
    ] = None,
    read_only: Annotated[
        bool, Option("--read-only", help="Answer only: the file is opened for reading and not locked.")
    ] = False,
    masks: Annotated[
        Literal["memory", "disk"],
        Option(help="Where masks are kept; servers of one file share those on the disk (with --device cpu)."),
    ] = "memory",
    together: Annotated[int, Option(help="The most images that are answered in one batch.")] = 256,
    method: Annotated[
        Method | None,
        Option(help="How the task is found here; the file keeps the model's own way. exhaustive tries every mask."),
    ] = None,
    net: Annotated[
        str | None, Option(help="module:function, if the model was learned on a network of your own.")
    ] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Serve a model over HTTP: answers, tasks to learn and forget, and a page to try it on at http://127.0.0.1:8000.

    POST /predict answers an image (task known or not), GET /tasks lists what was learned, POST /tasks/NAME learns a
    folder of images, DELETE /tasks/NAME forgets; GET /health and /metrics are for machines. docs/serve.md has
    examples. Requests that arrive together are answered in one batch, also while a task is being learned.

    Ctrl-C ends it: answers under way are given, what was reported as learned is in the file.
    """
    try:
        from supsup.cli.networks import own_network
        from supsup.serve.server import address, bound, run
        from supsup.serve.service import Served
        from supsup.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise SupSupError(f"serving needs the package {error.name}: pip install 'supsup[serve]'") from error
    settings = Settings(host=host, port=port, token=token, read_only=read_only, together=together)
    listening = bound(settings)
    with interruptible("nothing was served"), listening:
        own = own_network(net, model)
        served = Served.open(model, own, read_only=read_only, masks=masks, device=device, method=method)
        info = served.info()

        def ready() -> None:
            say(
                f"{escape_for_terminal(model)}: {info['tasks']:,} tasks on {info['device']}, at [bold]{address(listening)}[/]"
            )
            say(_who(settings.local, settings.token is not None, read_only))

        run(served, settings, listening, ready)
    say(f"stopped; {escape_for_terminal(model)} has {len(served.model.tasks):,} tasks")


def _who(local: bool, token: bool, read_only: bool) -> str:
    """Who may do what, in words."""
    reach = "only this machine can reach it" if local else "anybody who reaches this machine can ask"
    if read_only:
        return f"{reach}; nobody can change the model. Ctrl-C ends it"
    change = "learning and forgetting need the token" if token else "no token: any program here can change the model"
    return f"{reach}; {change}. Ctrl-C ends it"
