"""The operator: turns an RLTrainingJob into pods and keeps its status true."""
