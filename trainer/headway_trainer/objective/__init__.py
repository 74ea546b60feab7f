"""The policy-gradient objective as pure functions, one axis a module; `presets` joins a choice of each.

    a batch's rewards                        -> advantage  -------->  |
    sampler's, recomputed log-probabilities  -> correction -> old, and a weight of each token
    new, old log-probabilities               -> ratio -> surrogate -> | -> x weight of row (reduction) -> sum

Each module has a table and a decorator named after its axis; the decorator registers a function in the table.
A user's own module uses the same decorators (`spec.algorithm.plugins`). docs/algorithms.md says what each
method is for.
"""
