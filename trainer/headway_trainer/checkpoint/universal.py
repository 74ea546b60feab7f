"""The program that converts a checkpoint for another number of processes; see `resize`."""

from headway_trainer.engine import convert

if __name__ == "__main__":
    convert()
