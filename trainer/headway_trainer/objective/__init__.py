"""The policy-gradient objective as pure functions, one axis a module; `presets` joins a choice of each.

    a batch's rewards                        -> advantage  -------->  |
    sampler's, recomputed log-probabilities  -> correction -> old, and a weight of each token
    new, old log-probabilities               -> ratio -> surrogate -> | -> x weight of row (reduction) -> sum

Each module named in the diagram has a table and a decorator of that name, which registers a function in it.
A user's own module uses the same decorators (`spec.algorithm.plugins`). docs/algorithms.md says what each
method is for.
"""
