Feature: One handler at a time
  A claim holds a key for the length of its lease. Whoever comes meanwhile is told that the key is busy, or waits.

  Scenario: Two handlers at once
    Given the consumer "history"
    When the event of order_01 is delivered to two handlers at the same moment
    Then one delivery is "New" and the other "Busy"
    And "history" has run its handler 1 time
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Duplicate"

  Scenario: Busy while another delivery holds the key
    Given the consumer "history"
    And a handler that is in the middle of order_01
    When the event of order_01 is delivered
    Then the delivery is acknowledged as "Busy"
    When the handler in the middle of order_01 goes on
    Then its delivery is acknowledged as "New"
    And "history" has run its handler 1 time

  Scenario: Busy while a replay comes
    Given the consumer "history"
    And a handler that is in the middle of order_01
    When the event of order_01 is delivered by a replay
    Then the delivery fails because the key is busy
    When the handler in the middle of order_01 goes on
    And the event of order_01 is delivered by a replay
    Then the delivery is acknowledged as "Duplicate"

  Scenario: Wait for the result
    Given a function that prices a ride once
    And a caller that is in the middle of pricing order_01
    When a second caller, who may wait, prices order_01
    Then both callers have the same price
    And the ride was priced 1 time

  Scenario: Wait with a limit
    Given a function that prices a ride once
    And a caller that is in the middle of pricing order_01
    When a second caller, who may wait, prices order_01 and the first takes too long
    Then the second caller is told that the key is busy
    And the ride was priced 1 time
