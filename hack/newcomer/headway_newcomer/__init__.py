"""What a new user does who follows the documentation, and how long each block of it takes."""
