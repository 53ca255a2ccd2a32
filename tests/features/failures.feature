Feature: Failures are recorded, retried a bounded number of times, and never lost
  A failed attempt is remembered and the error goes on to the transport, which delivers again. When no attempt is left,
  or none can help, the key is quarantined: the event goes to the dead-letter queue and its handler is not run again.

  Background:
    Given the consumer "history"

  Scenario: Failed event retried
    Given a handler that fails 1 time
    When the event of order_01 is delivered
    Then the delivery fails with the handler's own error
    And the record of order_01 is FAILED at attempt 1
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Retried"
    And the record of order_01 is COMPLETED at attempt 2
    And "history" has run its handler 2 times

  Scenario: Event that fails whenever it is tried
    Given a handler that fails 3 times
    When the event of order_01 is delivered
    And the event of order_01 is delivered
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "QUARANTINED"
    And the record of order_01 is QUARANTINED at attempt 3
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Quarantined"
    And the dead-letter queue has 1 event, because of "QUARANTINED"
    And "history" has run its handler 3 times

  Scenario: Error that no retry can help
    Given a handler that gives up
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "DeadLettered"
    And the record of order_01 is QUARANTINED at attempt 1
    And the dead-letter queue has 1 event, because of "QUARANTINED"

  Scenario: Dead-letter queue out of reach
    Given a handler that gives up
    And a dead-letter queue that takes nothing
    When the event of order_01 is delivered
    Then the delivery fails because of the dead-letter queue
    When the dead-letter queue is back
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "QUARANTINED"
    And "history" has run its handler 1 time

  Scenario: Operator releases a quarantined key
    Given a handler that gives up
    And the event of order_01 was dead-lettered
    When an operator releases order_01
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "Retried"
    And the record of order_01 is COMPLETED at attempt 1

  Scenario: Quarantine outlasts the window
    Given a handler that gives up
    And the event of order_01 was dead-lettered
    When the window of order_01 has ended
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "Quarantined"
    And "history" has run its handler 1 time

  Scenario: Back-off
    Given a handler that fails 1 time
    And a back-off of 60 seconds
    When the event of order_01 is delivered
    And the event of order_01 is delivered
    Then the delivery is put off
    And "history" has run its handler 1 time
    When 61 seconds pass
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "Retried"
