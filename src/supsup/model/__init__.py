"""`SupSup`: its state and task table; learn, observe, predict, forget."""
