"""Loads the weights that a manifest names, and proves that the engine holds them.

checks.py          whether files are what they must be, before the engine is touched (pure)
canary.py          whether the engine computes what the learner computed (pure)
adapters.py        which versions are held, which may go (pure)
chain.py           full weights, or a delta and what it is built on -> a whole model on the disk
delta.py           one delta applied (pure except for files)
learner_client.py  the learner, if weights come from its memory
loaders.py         lora, full and base: how weights are loaded into the engine
updater.py         loads the manifests of one weight slot in order, and keeps the slot's state
slots.py           the weight slots of one engine
"""
