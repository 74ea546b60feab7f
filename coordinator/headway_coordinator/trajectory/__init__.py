"""An episode as token ids: rendering and parsing of messages, the message graph, and the training rows."""
