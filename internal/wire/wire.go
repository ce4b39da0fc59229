// Package wire is what goes to the scripts of queues and comes back: how a header is stored with a payload, and how
// times and tasks are written.
package wire

import (
	"strconv"
	"time"
)

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
