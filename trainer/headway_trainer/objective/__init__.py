"""The policy-gradient objective as pure functions, one axis a module; `presets` joins a choice of each.

    a batch's rewards -> advantage ---------------------> |
    sampler's, recomputed log-probabilities -> correction -> old, and a weight of each token
    new, old log-probabilities -> ratio -> surrogate ---> | -> x weight of the row (reduction) -> sum

Each module has a table and a decorator of its axis's name, which enters a function in it; a user's own
module uses the same ones (`spec.algorithm.plugins`). docs/algorithms.md says what each method is for.
"""
