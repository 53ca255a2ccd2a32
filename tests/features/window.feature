Feature: A record is remembered for a window
  The window outlasts every road by which an event can come back. When it has ended, the key is new; a delivery that is
  older than the window is never run.

  Background:
    Given the consumer "history"
    And the event of order_01 was processed

  Scenario: Inside the window
    When 29 days pass
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "Duplicate"

  Scenario: Expiry of the window
    When the window of order_01 has ended
    And the event of order_01 is delivered
    Then the delivery is acknowledged as "New"
    And the record of order_01 is COMPLETED at attempt 1
    And "history" has run its handler 2 times

  Scenario: Event older than the window
    When the window of order_01 has ended
    And the event of order_01 is delivered 31 days late
    Then the delivery is acknowledged as "DeadLettered"
    And the dead-letter queue has 1 event, because of "BEYOND_WINDOW"
    And "history" has run its handler 1 time
