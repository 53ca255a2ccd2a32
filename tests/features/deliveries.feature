Feature: An event takes effect once per consumer
  Producers retry, the bus redelivers, archives are replayed and dead letters redriven. A consumer runs its handler once
  for each key, and answers every other delivery of it from the record.

  Background:
    Given the consumer "history"

  Scenario: New event
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "New"
    And "history" has run its handler 1 time
    And the record of order_01 is COMPLETED at attempt 1

  Scenario: Completed event again
    Given the event of order_01 was processed
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Duplicate"
    And "history" has run its handler 1 time

  Scenario: Replayed event
    Given the event of order_01 was processed
    When the event of order_01 is delivered by a replay
    Then the delivery is acknowledged as "Duplicate"
    And "history" has run its handler 1 time

  Scenario: Two events
    When the event of order_01 is delivered
    And the event of order_02 is delivered
    Then "history" has run its handler 2 times

  Scenario Outline: Result of any kind
    Given a handler that returns <result>
    When the event of order_01 is delivered
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "Duplicate"
    And "history" has run its handler 1 time
    And the stored result of order_01 is <result>

    Examples:
      | result |
      | null   |
      | false  |
      | 0      |
      | {}     |
      | [1.5]  |

  Scenario: Fan-out to two consumers
    Given the consumer "payment"
    When the event of order_01 is delivered
    And the event of order_01 is delivered to "payment"
    Then the delivery is acknowledged as "New"
    And "history" has run its handler 1 time
    And "payment" has run its handler 1 time

  Scenario: Known key with another payload
    Given the event of order_01 was processed
    When the event of order_01 is delivered with another destination
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "PAYLOAD_MISMATCH"
    And "history" has run its handler 1 time
    And the record of order_01 is COMPLETED at attempt 1

  Scenario: Event without a key
    When an event without an idempotency key is delivered
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "MISSING_KEY"
    And "history" has run its handler 0 times

  Scenario: Expired event
    When the event of order_01 is delivered after it has expired
    Then the delivery is acknowledged as "Expired"
    And "history" has run its handler 0 times

  Scenario: Event that expired while an attempt at it was half done
    Given a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    When the event of order_01 is delivered after it has expired
    Then the delivery is acknowledged as "Takeover"
    And "history" has run its handler 2 times
