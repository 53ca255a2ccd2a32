Feature: A ride event takes effect once per consumer
  Producers retry, the bus redelivers, archives are replayed and dead letters redriven. On every store, a consumer does the
  work of an event once, and loses none.

  Scenario: Duplicate
    When the event is delivered
    Then the delivery is acknowledged as "New"
    When the event is delivered
    Then the delivery is acknowledged as "Duplicate"
    And the handler has run 1 time

  Scenario: Two handlers at once
    When the event is delivered to two handlers at the same moment
    Then one delivery runs, and the other finds the key busy
    And the handler has run 1 time

  Scenario: Crash and takeover
    Given a handler that crashes 1 time
    When the event is delivered
    And the delivery is retried
    Then the delivery fails with "BusyError"
    When the lease has ended
    And the delivery is retried
    Then the delivery is acknowledged as "Takeover"
    And the record is COMPLETED at attempt 2

  Scenario: Failure, quarantine and release
    Given a handler that fails 3 times
    When the event is delivered
    Then the delivery fails with "RideError"
    And the record is FAILED at attempt 1
    When the delivery is retried
    And the delivery is retried
    Then the record is QUARANTINED at attempt 3
    And the dead-letter queue has 1 event
    When the event is delivered
    Then the delivery is acknowledged as "Quarantined"
    And the handler has run 3 times
    When an operator releases the event
    And the event is delivered
    Then the delivery is acknowledged as "Retried"
    And the record is COMPLETED at attempt 1
