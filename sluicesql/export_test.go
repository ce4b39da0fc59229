package sluicesql

import (
	"strconv"
	"time"
)

// SetUnserved sets when a relay tells of queues that it has not.
func SetUnserved(every, old time.Duration) { unservedEvery, unservedFor = every, old }

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
