"""What generates, computes and builds around the application. Nothing here is deployed."""
