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
	began atomic.Pointer[time.Time] // nil while there is none
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
func (o *Outage) Lasts() bool { return o != nil && o.began.Load() != nil }

// since notes that a request which began at start was not carried out, and returns since
// when its caller has met the outage. Without an Outage that is start.
func (o *Outage) since(start, arrived time.Time) time.Time {
	if o == nil {
		return start
	}
	o.began.CompareAndSwap(nil, &start)
	if began := o.began.Load(); began != nil {
		start = *began
	}
	if arrived.After(start) {
		return arrived
	}
	return start
}

// End notes that a server was reached.
func (o *Outage) End() {
	if o.Lasts() {
		o.began.Store(nil)
	}
}
