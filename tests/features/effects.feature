Feature: Effects take place with the record
  What a handler registers on its operation is written in one transaction with the completion, on the stores that have
  transactions: all of it once, or none of it.

  Scenario: Effect and completion
    Given the consumer "payment", which charges the ride
    When the event of order_01 is delivered
    And the event of order_01 is delivered
    Then order_01 was charged 1 time

  Scenario: Failed attempt
    Given the consumer "payment", which charges the ride
    And a handler that fails 1 time
    When the event of order_01 is delivered
    Then order_01 was charged 0 times
    When the event of order_01 is delivered
    Then order_01 was charged 1 time

  Scenario: Crash before the commit
    Given the consumer "payment", which charges the ride
    And a handler that crashed in the middle of order_01
    And the lease of order_01 has run out
    When the event of order_01 is delivered
    Then order_01 was charged 1 time

  Scenario: Stale owner
    Given the consumer "payment", which charges the ride
    And a handler that is in the middle of order_01
    And the lease of order_01 has run out
    And the event of order_01 was processed
    When the handler in the middle of order_01 goes on
    Then order_01 was charged 1 time

  Scenario: Business conflict
    Given the consumer "payment", which charges the ride
    And order_01 was charged by someone else
    When the event of order_01 is delivered
    Then the delivery fails because of the conflict
    And the record of order_01 is FAILED at attempt 1
    And order_01 was charged 1 time

  Scenario: Atomic mode
    Given the consumer "payment", which charges the ride without a claim
    When the event of order_01 is delivered to two handlers at the same moment
    Then order_01 was charged 1 time
    And the record of order_01 is COMPLETED at attempt 1
