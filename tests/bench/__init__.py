"""What this layer costs, beside AWS Lambda Powertools' idempotency utility in the same run."""
