"""`headway tiny-model`: a model of a megabyte that calls one environment's tools, taught from its oracle's
episodes."""
