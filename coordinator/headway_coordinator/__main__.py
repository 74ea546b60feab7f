"""`python -m headway_coordinator`: one job's coordinator."""

from headway_coordinator.coordinator import main

if __name__ == "__main__":
    main()
