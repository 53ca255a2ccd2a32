"""Notes payments that webhooks report, by a function URL and by a service: the code of the page."""

import os

from webhook_core import receiver
from webhook_service import service
from webhook_url import function_url

from carride_idempotency import Policy, open_store
from carride_idempotency.testing import DeadLetterBox

receive = receiver(
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    DeadLetterBox(),
    os.environ["WEBHOOK_SECRET"],
    Policy(max_attempts=30, lease=3, margin=0.1, clock_skew=0.1, reserve=0.2),
)
handler = function_url(receive)
app = service(receive)
