package sluicesql

import (
	"context"
	"database/sql"
)

// Unserved returns the look of a relay for rows of queues that it has not.
func (r *Relay) Unserved() (func(context.Context), error) {
	w, err := r.start()
	return w.tellUnserved, err
}

// Begin begins a transaction as a relay does.
func (r *Relay) Begin(ctx context.Context) (*sql.Tx, error) {
	w, err := r.start()
	if err != nil {
		return nil, err
	}
	return w.begin(ctx)
}

// HaveRows and FirstRows are the relay's queries.
func (o Outbox) HaveRows(n int) string      { return o.haveRows(n) }
func (o Outbox) FirstRows(lock bool) string { return o.firstRows(lock, mostRows) }

// DeleteRows is its statement that deletes n rows, and LockRows the query that locks them.
func (o Outbox) DeleteRows(n int) string { return o.deleteRows(someRows(n)) }
func (o Outbox) LockRows(n int) string   { return o.lockRows(someRows(n)) }

func someRows(n int) []*written {
	rows := make([]*written, n)
	for i := range rows {
		rows[i] = &written{id: int64(i + 1)}
	}
	return rows
}
