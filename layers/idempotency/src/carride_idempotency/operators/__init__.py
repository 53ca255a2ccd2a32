"""What an operator's command is made of: `python -m carride_idempotency`, and tools of your own.

No consumer imports it: a Lambda's cold start does not pay for it.
"""
