"""The operator: turns a training job into pods and keeps its status true."""
