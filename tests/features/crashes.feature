Feature: A crash loses nothing, and a handler that was given up for dead does no harm
  A claim that nobody ends is taken over when its lease has run out. Every claim has a token of its own, so that a handler
  which wakes up late changes nothing.

  Background:
    Given the consumer "history"

  Scenario: Crash and takeover
    Given a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Takeover"
    And the record of order_01 is COMPLETED at attempt 2
    And "history" has run its handler 2 times

  Scenario: Delivered again before the lease has run out
    Given a handler that crashed in the middle of order_01
    When the same delivery of order_01 comes again
    Then the delivery fails because the key is busy
    And "history" has run its handler 1 time

  Scenario: Event that crashes every handler
    Given a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    And a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    And a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "QUARANTINED"
    And "history" has run its handler 3 times

  Scenario: Stale owner completes
    Given a handler that is in the middle of order_01
    And the lease of order_01 has run out
    And the event of order_01 was processed
    When the handler in the middle of order_01 goes on
    Then its delivery is acknowledged as "LostLease"
    And the record of order_01 is COMPLETED at attempt 2

  Scenario: Stale owner fails
    Given a handler that is in the middle of order_01
    And the lease of order_01 has run out
    And the event of order_01 was processed
    When the handler in the middle of order_01 fails
    Then its delivery is acknowledged as "LostLease"
    And the record of order_01 is COMPLETED at attempt 2

  Scenario: Stale owner completes while the next attempt is under way
    Given a handler that is in the middle of order_01
    And the lease of order_01 has run out
    And a second handler that is in the middle of order_01
    When the handler in the middle of order_01 goes on
    Then its delivery fails because the lease was lost
    And the record of order_01 is IN_PROGRESS at attempt 2
    When the second handler in the middle of order_01 goes on
    Then its delivery is acknowledged as "Takeover"
    And the record of order_01 is COMPLETED at attempt 2
