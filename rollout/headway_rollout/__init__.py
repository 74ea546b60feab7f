"""The rollout server: vLLM as a child process, and the weight agent beside it.

launch.py            spec -> vLLM's command line (pure)
model.py             base model URI -> folder
guard.py process.py  start the child process, read its output, and leave no process behind
engine.py            the few calls to vLLM over HTTP
weights/             a published manifest -> verified weights in the engine
failures.py          why vLLM ended (pure)
deaths.py            which signal killed one of its processes (pure)
worker.py            runs inside vLLM's workers, before their first step
weight_transfer.py   runs inside vLLM: loads all weights from a folder or the learner
cpu_lora.py          also inside vLLM: on a CPU, keeps adapters out of requests for the base model
receiver.py          also inside vLLM: receives weights from the learner's memory
agent.py             HTTP for the coordinator and the kubelet
server.py            the process: starts vLLM and the agent, and ends when either cannot continue
"""
