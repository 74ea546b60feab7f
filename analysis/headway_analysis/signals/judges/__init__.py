"""How each signal's number is computed and held against its threshold."""
