package main

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads a clock that all processes of the machine share and that is never set. (The
// monotonic part of a time.Time has another origin in each process.)
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// span is the time of an event: between two readings of the monotonic clock.
type span struct{ after, before time.Duration }

func (s span) meets(from, to time.Duration) bool { return s.after <= to && from <= s.before }

func (s span) String() string { return fmt.Sprintf("%v..%v", s.after, s.before) }

// serverClock maps the monotonic clock to the server's clock, which faults set.
type serverClock struct {
	ahead time.Duration // the server's clock, before it was set, minus the monotonic clock
	jumps []jump        // in order
}

// jump is a setting of the server's clock to the real time plus offset.
type jump struct {
	at     span
	offset time.Duration
}

// settle is how long the server may keep using a time that it has read.
const settle = 50 * time.Millisecond

// newServerClock compares the clocks, many times, since other processes may run between two
// readings.
func newServerClock() serverClock {
	ahead, least := time.Duration(0), time.Duration(1<<62)
	for range 1000 {
		before := monotonic()
		now := time.Duration(time.Now().UnixNano())
		if took := monotonic() - before; took < least {
			ahead, least = now-before-took/2, took
		}
	}
	return serverClock{ahead: ahead}
}

// at returns the earliest and the latest time that the server's clock may have shown within a
// span.
func (c serverClock) at(s span) (earliest, latest time.Duration) {
	offset := time.Duration(0)
	earliest, latest = 1<<62, 0
	see := func(from, to time.Duration) {
		if from <= to {
			earliest, latest = min(earliest, from+c.ahead+offset), max(latest, to+c.ahead+offset)
		}
	}
	from := s.after
	for _, j := range c.jumps {
		see(from, min(s.before, j.at.before))
		from, offset = max(s.after, j.at.after), j.offset
	}
	see(from, s.before)
	return earliest, latest
}

// reaches returns when, after from, the server's clock first shows this time or a later one. If the
// clock was set at about that time, it is somewhere in the span: perhaps the setting came first.
func (c serverClock) reaches(server, from time.Duration) span {
	earliest, offset := time.Duration(math.MaxInt64), time.Duration(0)
	for _, j := range c.jumps {
		if j.at.before > from {
			at := max(server-c.ahead-offset, from)
			if at <= j.at.before {
				earliest = min(earliest, at)
			}
			if at <= j.at.after {
				return span{earliest, at}
			}
			from = j.at.before
		}
		offset = j.offset
	}
	at := max(server-c.ahead-offset, from)
	return span{min(earliest, at), at}
}

// lastReaches returns when, after from, the server's clock shows this time or a later one for the
// last time until then that it has not done so before: if it is set back, it shows the time again.
func (c serverClock) lastReaches(server, from, until time.Duration) time.Duration {
	last := c.reaches(server, from).before
	for _, j := range c.jumps {
		if at := c.reaches(server, j.at.before).before; j.at.before > from && j.at.after <= until && at > j.at.before {
			last = max(last, at)
		}
	}
	return last
}

// highest returns the latest time that the server's clock has shown until then, perhaps before it
// was set back.
func (c serverClock) highest(until time.Duration) (latest time.Duration) {
	offset := time.Duration(0)
	for _, j := range c.jumps {
		if j.at.after > until {
			break
		}
		latest = max(latest, min(j.at.before, until)+c.ahead+offset)
		offset = j.offset
	}
	return max(latest, until+c.ahead+offset)
}

// setAhead says whether the clock was set ahead within a span, and when the last such setting
// took effect at the latest. Only a clock set ahead ends keys and leases early.
func (c serverClock) setAhead(from, to time.Duration) (when time.Duration, was bool) {
	offset := time.Duration(0)
	for _, j := range c.jumps {
		if j.offset > offset && j.at.meets(from-settle, to) {
			when, was = j.at.before+settle, true
		}
		offset = j.offset
	}
	return when, was
}

// set says whether the clock was set at all within a span.
func (c serverClock) set(from, to time.Duration) bool {
	for _, j := range c.jumps {
		if j.at.meets(from-settle, to) {
			return true
		}
	}
	return false
}
