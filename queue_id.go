package sluice

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"sync/atomic"
	"time"
)

// NewID returns an ID for a task that has no name of its own: 26 digits and lower-case letters, 72 bits of which
// are random beside the time, so that no other process makes the same.
//
// IDs sort by the time at which they were made, by the local clock; those of one process sort in the order of the
// calls, also when that clock is set back. Where a task has a name, such as that of an order, use it: then the task
// is in the queue once, however often it is enqueued.
func NewID() string {
	var id [16]byte                                           // microseconds of Unix time, which take seven bytes until the year 4253, and random ones
	binary.BigEndian.PutUint64(id[:], uint64(nextMicro())<<8) //nolint:gosec // not negative
	_, _ = rand.Read(id[7:])                                  // never fails
	return idEncoding.EncodeToString(id[:])
}

// idEncoding keeps the order of what it encodes. It has no letters that are easily taken for digits.
var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

var lastMicro atomic.Int64

// nextMicro returns the time in microseconds, or more than it returned last if that is later.
func nextMicro() int64 {
	for {
		last := lastMicro.Load()
		next := max(time.Now().UnixMicro(), last+1)
		if lastMicro.CompareAndSwap(last, next) {
			return next
		}
	}
}
