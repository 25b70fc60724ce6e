"""Pure renderers: values in, lines of styled text out; used by widgets and by commands."""
