"""The policy-gradient objective as pure functions, one axis a module; `presets` names their combinations.

rewards of a group -> advantage -> |
new, old log-probabilities -> ratio -> surrogate -> sum / global denominator (reduction)
sampler's, trainer's log-probabilities -> correction -> old log-probabilities
"""
