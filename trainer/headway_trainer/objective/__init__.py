"""The policy-gradient objective as pure functions, with one axis in each module. `presets` combines them.

    a batch's rewards                        -> advantage  -------->  |
    sampler's, recomputed log-probabilities  -> correction -> old, and a weight of each token
    new, old log-probabilities               -> ratio -> surrogate -> | -> x weight of row (reduction) -> sum

Each module named in the diagram has a table of functions. Its decorator, which has the module's name,
registers a function in the table. A user's own module uses the same decorators (`spec.algorithm.plugins`).
docs/algorithms.md says what each method is for.
"""
