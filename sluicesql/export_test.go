package sluicesql

// HaveRows and FirstRows are the relay's queries.
func (o Outbox) HaveRows(n int) string      { return o.haveRows(n) }
func (o Outbox) FirstRows(lock bool) string { return o.firstRows(lock) }
