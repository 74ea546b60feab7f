"""From a published manifest to weights that the engine provably holds.

checks.py     are these files what they must be, before the engine is touched (pure)
canary.py     does the engine compute what the learner computed (pure)
adapters.py   which versions are held, which may go (pure)
chain.py      full weights, or a delta and what it is built on -> a whole model on the disk
delta.py      one delta applied (pure but for files)
learner.py    the learner, where weights come out of its memory
loaders.py    lora, full and base: how the engine is made to take weights
updater.py    one manifest after another of one slot; what the server says it holds there
slots.py      the slots of one engine
"""
