"""What the functions find in their environment when they are imported; tests give them settings of their own."""

import os

os.environ |= {
    "ASSIGNMENT_TABLE": "assignments",
    "AWS_REGION": "us-east-1",
    "CAR_TABLE": "cars",
    "LEASE_SECONDS": "30",
    "OUTBOX_TABLE": "outbox",
    "PAYMENT_GATEWAY_URL": "http://127.0.0.1:9",
    "PAYMENT_TABLE": "payments",
}
