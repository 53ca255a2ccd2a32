"""The rules, and what the code looks like without each."""

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """One rule taken out of the code."""

    rule: str
    file: str
    """In ``layers/idempotency/idempotency``."""
    code: str
    """Text that stands there once."""
    without: str
    tests: str
    """pytest's arguments, within ``tests/unit/idempotency``."""


_RULES = "test_rules.py::TestRule"

MUTANTS: Final = (
    Mutant(
        "1 the claim is conditional",
        "stores/dynamodb.py",
        '"attribute_not_exists(idempotencyKey)"',
        '"attribute_not_exists(idempotencyKey) OR attribute_exists(idempotencyKey)"',
        f"{_RULES}1Claim",
    ),
    Mutant(
        "1 a token recognises its own write",
        "decision.py",
        "    if found.owner == me.owner:\n        return _decide_own",
        "    if found is None:\n        return _decide_own",
        f"{_RULES}1Claim",
    ),
    Mutant(
        "1 a record that vanished is claimed anew",
        "runner.py",
        "            step = Write(None, attempt(me, now_ms)) if found is None else decide(found, me, now_ms)\n"
        "        raise ContentionError",
        "            step = Run(record) if found is None else decide(found, me, now_ms)\n        raise ContentionError",
        f"{_RULES}1Claim",
    ),
    Mutant(
        "2 a takeover compares the lease",
        "stores/dynamodb.py",
        '(("#o", seen.owner, "S"), ("leaseExpiry", seen.lease_ms, "N"))',
        '(("#o", seen.owner, "S"),)',
        f"{_RULES}2Takeover",
    ),
    Mutant(
        "2 an ended window does not override a live lease",
        "decision.py",
        "if status == COMPLETED and is_over(",
        "if is_over(",
        f"{_RULES}2Takeover",
    ),
    Mutant(
        "3 commit and failure carry the owner",
        "stores/dynamodb.py",
        'condition = "#s = :s AND #o = :o"',
        'condition = "#s = :s OR #o = :o"',
        f"{_RULES}3Fence",
    ),
    Mutant(
        "3 a lost lease is answered by the record",
        "decision.py",
        "    if found.owner != me.owner:\n        return Lost(found)",
        "    if found.owner != me.owner:\n        return Done(found)",
        f"{_RULES}3Fence",
    ),
    Mutant(
        "4 the original error survives",
        "runner.py",
        '            error.add_note(f"This failure could not be recorded: {lost}")\n'
        "            return Answer(observation.FAILED, claim, _describe(error), error)",
        "            raise",
        f"{_RULES}4Failure",
    ),
    Mutant(
        "4 attempts are limited",
        "decision.py",
        "if outcome.permanent or claim.attempt >= limits.max_attempts:",
        "if outcome.permanent:",
        f"{_RULES}4Failure",
    ),
    Mutant(
        "4 the dead letter is sent before it is marked and acknowledged",
        "runner.py",
        "            self._dead_letters.send(letter)\n",
        "",
        f"{_RULES}4Failure",
    ),
    Mutant(
        "5 the lease follows the deadline",
        "decision.py",
        "return min(now_ms + limits.lease_ms, end) if me.renewed else end",
        "return now_ms + limits.lease_ms",
        f"{_RULES}5Lease",
    ),
    Mutant(
        "5 a heartbeat is joined before the work returns",
        "heartbeat.py",
        "        self._thread.join()",
        "        pass",
        "test_consumer.py::TestHeartbeat",
    ),
    Mutant(
        "5 a heartbeat never shortens the lease",
        "stores/dynamodb.py",
        'condition += " AND leaseExpiry <= :l"',
        'condition += " AND :l = :l"',
        f"{_RULES}5Lease",
    ),
    Mutant(
        "6 effects are in the record's transaction",
        "stores/dynamodb.py",
        '[{"Put": put}, *(effect.action() for effect in effects)]',
        '[{"Put": put}]',
        f"{_RULES}6EffectsWithTheRecord",
    ),
    Mutant(
        "6 a business conflict is told apart",
        "stores/dynamodb.py",
        "raise refusal(reasons[1:], error) from error",
        "return None",
        f"{_RULES}6EffectsWithTheRecord",
    ),
    Mutant(
        "6 without transactions, a mark refuses effects that are there",
        "stores/dynamodb_effects.py",
        "    mark = mark_of(effect)\n    action",
        "    mark = None\n    action",
        "test_effects_before_the_record.py::TestCrash",
    ),
    Mutant(
        "6 without transactions, a mark that refuses is success",
        "stores/dynamodb_effects.py",
        "if not any(map(_bears_mark, effects, reasons)):",
        "if reasons:",
        "test_effects_before_the_record.py::TestCrash",
    ),
    Mutant(
        "6 without transactions, effects come before the record",
        "runner.py",
        "            ending, effects = self._write_effects(started, effects), ()\n",
        "            effects = ()\n",
        "test_effects_before_the_record.py::TestOrder",
    ),
    Mutant(
        "6 without transactions, a lost lease writes no effects",
        "runner.py",
        "if found is None or found.owner != me.owner or found.status != IN_PROGRESS or found.lease_ms is None:",
        "if found is None or found.lease_ms is None and found.owner == me.owner:",
        "test_effects_before_the_record.py::TestLease",
    ),
    Mutant(
        "6 without transactions, effects are begun only under a lease that outlasts them",
        "runner.py",
        "        if left_ms < writer.longest_try_s * 1000:\n",
        "        if left_ms < 0:\n",
        "test_effects_before_the_record.py::TestLease",
    ),
    Mutant(
        "7 atomic mode makes no claim",
        "runner.py",
        "run = self._run_atomic if self.policy.atomic else self._run_claimed",
        "run = self._run_claimed",
        f"{_RULES}7AtomicMode",
    ),
    Mutant(
        "8 a missing key fails closed",
        "keys.py",
        'if part is None or part == "":',
        "if part is Ellipsis:",
        f"{_RULES}8Keys",
    ),
    Mutant(
        "9 an empty result is a result",
        "runner.py",
        "        if self.record.result is None:\n",
        '        if self.record.result in (None, "null", "0", "[]"):\n',
        f"{_RULES}9Results",
    ),
    Mutant(
        "10 payloads are compared",
        "decision.py",
        "if stored is None or ours is None or stored == ours:",
        "if stored or ours or stored == ours:",
        f"{_RULES}10Fingerprint",
    ),
    Mutant(
        "11 deliveries are acknowledged in one direction only, and never the same one",
        "runner.py",
        "            and holder.delivery < delivery.id\n",
        "",
        f"{_RULES}11Busy",
    ),
    Mutant(
        "11 a replay is not acknowledged while it is busy",
        "runner.py",
        "            and not delivery.replayed\n",
        "",
        f"{_RULES}11Busy",
    ),
    Mutant(
        "11 another region's busy is not acknowledged",
        "runner.py",
        "            and holder.region == self._region\n",
        "",
        f"{_RULES}11Busy",
    ),
    Mutant(
        "12 nothing starts inside the reserve",
        "runner.py",
        "return deadline_ms is None or deadline_ms - (now_ms or self.clock()) > self._reserve_ms",
        "return True",
        f"{_RULES}12Time",
    ),
    Mutant(
        "12 no try begins that could not end in time",
        "stores/dynamodb.py",
        "if not tries_left or (until_ms is not None and next_end_ms > until_ms):",
        "if not tries_left:",
        f"{_RULES}12Time",
    ),
    Mutant(
        "13 what is older than the window never runs",
        "decision.py",
        "return sent_ms + limits.window_s * 1000 < end_ms + 2 * limits.skew_ms + 1000",
        "return sent_ms < 0",
        f"{_RULES}13Window",
    ),
    Mutant(
        "13 the TTL of a claim outlasts its lease",
        "decision.py",
        "return max(now_ms // 1000 + me.limits.window_s, lease_ms // 1000 + TTL_BEYOND_LEASE_S)",
        "return now_ms // 1000 + me.limits.window_s",
        f"{_RULES}13Window",
    ),
    Mutant(
        "14 records run concurrently",
        "batch.py",
        "ThreadPoolExecutor(min(concurrency, len(together))",
        "ThreadPoolExecutor(min(1, len(together))",
        "test_batch.py::test_second_attempts_run_alone_and_last test_batch.py::test_records_run_concurrently",
    ),
    Mutant(
        "14 second attempts run alone and last",
        "batch.py",
        "    for lane in alone:\n        run_lane(lane)\n    return",
        "    return",
        "test_batch.py::test_second_attempts_run_alone_and_last",
    ),
    Mutant(
        "14 equal keys share a lane",
        "batch.py",
        "lanes.setdefault(job.lane or position, [])",
        "lanes.setdefault(position, [])",
        "test_batch.py::test_equal_keys_share_one_failure",
    ),
    Mutant(
        "15 warm answers are bounded in age",
        "warm.py",
        "if not 0 <= now_ms - since_ms <= self._longest_ms:",
        "if now_ms < 0:",
        f"{_RULES}15WarmCache",
    ),
    Mutant(
        "16 tokens are drawn at claim time",
        "runner.py",
        "new_owner: Callable[[], str] = lambda: os.urandom(16).hex(),",
        "new_owner: Callable[[], str] = lambda token=os.urandom(16).hex(): token,",
        f"{_RULES}16Tokens",
    ),
)
