package store

import (
	"strconv"
	"time"
)

// LongestDuration is the longest duration that any argument may be: with it no sum overflows and no
// time passes the year 2200.
const LongestDuration = 100 * 365 * 24 * time.Hour

// LastTime is the latest due time that is accepted.
var LastTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Millis rounds up, so that a key never lives shorter than its holder believes.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// timeToLive is a TTL that the server answered, within what fits a time.Duration: a foreign key may
// live for longer.
func timeToLive(ms int64) time.Duration {
	return time.Duration(min(ms, int64(LongestDuration/time.Millisecond))) * time.Millisecond
}

// CeilMicros returns microseconds, rounded up, so that nothing is due too early.
func CeilMicros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// Duration writes a duration as scripts are given it: seconds, rounded up to microseconds.
func Duration(d time.Duration) string { return Micros(CeilMicros(d)) }

// Micros writes microseconds as decimal seconds.
func Micros(us int64) string { return string(appendMicros(nil, us)) }

func appendMicros(b []byte, us int64) []byte {
	b = strconv.AppendInt(b, us/1e6, 10)
	point := len(b)
	b = strconv.AppendInt(b, 1e6+us%1e6, 10)
	b[point] = '.'
	return b
}
