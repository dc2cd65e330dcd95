"""A model over HTTP, with a web page: `supsup serve`. Needs the extra `serve`."""
