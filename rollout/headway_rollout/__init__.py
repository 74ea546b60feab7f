"""The rollout server: vLLM as a child process, and the weight agent beside it.

launch.py            spec -> vLLM's command line (pure)
model.py             base model URI -> folder
guard.py process.py  the child: started, heard, judged, never left behind
engine.py            the few calls made to vLLM over HTTP
weights/             a published manifest -> verified weights in the engine
failures.py          why vLLM ended (pure)
deaths.py            of which signal one of its processes died (pure)
worker.py            runs inside vLLM's workers, before their first step
weight_transfer.py   runs inside vLLM: all weights, taken from a folder or the learner
cpu_lora.py          there too: requests without an adapter get none
receiver.py          there too: weights out of the learner's memory
agent.py             HTTP for the coordinator and the kubelet
server.py            wires the above
"""
