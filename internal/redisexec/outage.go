package redisexec

import (
	"sync/atomic"
	"time"
)

// Outage is since when requests that follow one another have found no server to carry them
// out. Callers that wait in one queue share it: when the first of them has tried for
// unavailableFor, those behind it who have waited for as long do not try for as long again, nor
// at all if one has just failed. The zero value is ready for use, also by several goroutines.
type Outage struct {
	now atomic.Pointer[beginning] // nil while there is none
}

// beginning is when an outage began, the error that it began with, and when the last request
// failed.
type beginning struct {
	at   time.Time
	why  error
	last time.Time
}

// Arrival is what a caller that arrives now gives as [Request.Arrived]: zero, for a time
// before the outage, if there is none.
func (o *Outage) Arrival() time.Time {
	if !o.Lasts() {
		return time.Time{}
	}
	return time.Now()
}

// Lasts reports whether the last request found no server. It may be nil.
func (o *Outage) Lasts() bool { return o.Why() != nil }

// Why returns the error with which the outage began, or nil if there is none.
func (o *Outage) Why() error {
	if o == nil {
		return nil
	}
	if now := o.now.Load(); now != nil {
		return now.why
	}
	return nil
}

// since notes that a request which began at start was not carried out, and why. It returns since
// when its caller has met the outage. Without an Outage that is start.
func (o *Outage) since(start, arrived time.Time, why error) time.Time {
	if o == nil {
		return start
	}
	for {
		now, next := o.now.Load(), &beginning{start, why, time.Now()}
		if now != nil {
			next.at, next.why = now.at, now.why
		}
		if o.now.CompareAndSwap(now, next) {
			return next.met(arrived)
		}
	}
}

// met returns since when a caller that has arrived then has met the outage.
func (b *beginning) met(arrived time.Time) time.Time {
	if arrived.After(b.at) {
		return arrived
	}
	return b.at
}

// over returns the error of a caller that arrived then and need not try: it has waited out its
// time, and a request has just failed. To connect to a host that does not answer takes half a
// minute, for each. It returns nil if the caller is to try. o may be nil.
func (o *Outage) over(arrived time.Time) error {
	if o == nil {
		return nil
	}
	now := o.now.Load()
	if now == nil || time.Since(now.met(arrived)) <= unavailableFor || time.Since(now.last) > backoffLast {
		return nil
	}
	return now.why
}

// End notes that a server was reached.
func (o *Outage) End() {
	if o.Lasts() {
		o.now.Store(nil)
	}
}
