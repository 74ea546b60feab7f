"""Loads the weights that a manifest names, and proves that the engine holds them.

checks.py          checks files before the engine is touched (pure)
canary.py          compares the engine's log-probabilities with the learner's (pure)
adapters.py        which versions of adapters are held, and which may be released (pure)
chain.py           full weights, or a delta with its earlier versions -> a whole model on the disk
delta.py           applies one delta (pure except for files)
learner_client.py  calls the learner, if weights come from its memory
loaders.py         lora, full and base: how weights are loaded into the engine
updater.py         loads the manifests of one weight slot in order, and keeps the slot's state
slots.py           the weight slots of one engine
"""
