"""What rides cost, how many fit, and what a store's records cost: `make costs`. Not deployed."""
