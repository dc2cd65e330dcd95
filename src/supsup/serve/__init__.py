"""The HTTP face of a model and its page: `supsup serve`. Needs the extra `serve`; nothing else imports this room."""
