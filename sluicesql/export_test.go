package sluicesql

import (
	"context"
	"strconv"
)

// Unserved returns the look of a relay for rows of queues that it has not.
func (r *Relay) Unserved() (func(context.Context), error) {
	w, err := r.start()
	return w.tellUnserved, err
}

// HaveRows and FirstRows are the relay's queries.
func (o Outbox) HaveRows(n int) string      { return o.haveRows(n) }
func (o Outbox) FirstRows(lock bool) string { return o.firstRows(lock, mostRows) }

// DeleteRows is its statement that deletes n rows.
func (o Outbox) DeleteRows(n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
	}
	return o.deleteRows(ids)
}
