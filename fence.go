package sluice

import (
	"fmt"
	"strconv"
	"time"
)

const (
	// fenceBlock is how many fences are reserved when a lock is acquired: one
	// for each microsecond for which it may go from hand to hand.
	fenceBlock = int64(passFor / time.Microsecond)
	// fenceLife is how long a name's last fence is remembered. After that the
	// server's clock alone makes the next one higher.
	fenceLife = 24 * time.Hour
)

// fences are those that were reserved with an acquisition. The first is at least
// the server's time in microseconds; each hand-over takes that of its time, and what is
// left of them is given back with the lock.
//
// No fence runs ahead of the server's clock by it: the n-th is not given out
// before n microseconds have passed since the acquisition was answered. So the
// clock alone makes the next acquisition's higher, should the server have
// forgotten all fences in between.
type fences struct {
	first, current int64 // 0 if there are none
	since          time.Time
}

// next takes a fence for who inherits the lock: that of the present microsecond or,
// where that was taken, the next one, when its time has come. The following one of the
// block would do as long as one primary gives all fences. After a failover two may do so
// for a while, and then a lower one than the other has given meanwhile would be late.
func (f fences) next() (fences, bool) {
	last := f.first + fenceBlock - 1
	if f.first == 0 || f.current == last {
		return f, false
	}
	for range 500 { // a few microseconds; on a fake clock that stands still, in vain
		if now := f.first + time.Since(f.since).Microseconds(); now > f.current {
			f.current = min(now, last)
			return f, true
		}
	}
	return f, false
}

// unused is how many fences are to be given back. Of an acquisition that nobody
// knows to have been answered, all.
func (f fences) unused() int64 {
	if f.first == 0 {
		return fenceBlock
	}
	return f.first + fenceBlock - 1 - f.current
}

// decodeAcquired decodes the reply to an acquisition: how long somebody else may
// still keep the lock, or 0 and the fence, if one was asked for.
func decodeAcquired(reply any) (left time.Duration, fence int64, err error) {
	switch r := reply.(type) {
	case int64:
		if r < 0 {
			return 0, 0, fmt.Errorf("%w: the last fence", ErrCorrupt)
		}
		return duration(r), 0, nil
	case string:
		if fence, err = strconv.ParseInt(r, 10, 64); err == nil && fence > 0 {
			return 0, fence, nil
		}
	}
	return 0, 0, errReply(reply)
}
