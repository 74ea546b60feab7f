"""An episode as token ids: the message graph, its rendering, and the rows it becomes."""
