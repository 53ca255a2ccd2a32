Feature: An event takes effect once
  An order may be delivered any number of times: by a retry, a redelivery, a replay or a redrive.
  A consumer charges it once. Whatever cannot be processed is kept in a dead-letter queue.

  Scenario: The first delivery takes effect
    When the order is delivered
    Then the outcome is "New"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: A duplicate takes no effect
    Given the order was delivered
    When the order is delivered
    Then the outcome is "Duplicate"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: A caller that asks again gets the first answer
    Given a caller asked for a receipt
    When the caller asks again
    Then both answers are the same receipt
    And one receipt was written

  Scenario: A failed delivery is retried
    Given a delivery of the order failed before the charge
    And its record is "FAILED"
    When the order is delivered
    Then the outcome is "Retried"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: Of two deliveries at once, one runs
    Given the order is being processed
    When a second delivery of the order arrives
    Then the second delivery is acknowledged as "Busy"
    And the second delivery found the record "IN_PROGRESS"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: A delivery that crashed is taken over when its lease has ended
    Given a delivery of the order crashed before the charge
    And its record is "IN_PROGRESS"
    When the crashed delivery comes again, and waits for the lease to end
    Then the outcome is "Takeover"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: An order that always fails is dead-lettered, and never runs again
    Given every delivery of the order fails
    When the order is delivered 4 times
    Then it ran 3 times
    And it is in the dead-letter queue once, because of "QUARANTINED"
    And its record is "QUARANTINED"

  Scenario: Another order under the same key is dead-lettered
    Given the order was delivered
    When the order is delivered with another amount
    Then it is in the dead-letter queue once, because of "PAYLOAD_MISMATCH"
    And the order was charged once
    And its record is "COMPLETED"

  Scenario: An order older than the memory of keys is dead-lettered
    When an order of 31 days ago is delivered
    Then it is in the dead-letter queue once, because of "BEYOND_WINDOW"
    And the order was not charged
    And it has no record

  Scenario: An operator releases an order whose cause is mended
    Given every delivery of the order fails
    And the order was delivered 4 times
    When the cause is mended, and an operator releases its key
    And the order is delivered
    Then the outcome is "Retried"
    And the order was charged once
    And its record is "COMPLETED"
