"""An episode as token ids: the message graph, its rendering, and its training rows."""
