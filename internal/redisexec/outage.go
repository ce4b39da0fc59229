package redisexec

import (
	"sync/atomic"
	"time"
)

// Outage is since when requests that follow one another have found no server to carry them
// out. Callers that wait in one queue share it: when the first of them has tried for
// unavailableFor, those behind it who have waited for as long try once each, and not for
// as long again. The zero value is ready for use, also by several goroutines.
type Outage struct {
	now atomic.Pointer[beginning] // nil while there is none
}

// beginning is when an outage began, and the error that it began with.
type beginning struct {
	at  time.Time
	why error
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
	o.now.CompareAndSwap(nil, &beginning{start, why})
	if now := o.now.Load(); now != nil {
		start = now.at
	}
	if arrived.After(start) {
		return arrived
	}
	return start
}

// End notes that a server was reached.
func (o *Outage) End() {
	if o.Lasts() {
		o.now.Store(nil)
	}
}
