package store

import "time"

// LongestDuration is the longest duration that any argument may be: with it no sum overflows and no
// time passes the year 2200.
const LongestDuration = 100 * 365 * 24 * time.Hour

// Millis rounds up, so that a key never lives shorter than its holder believes.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// TimeToLive is a TTL that the server answered, within what fits a time.Duration: a foreign key may
// live for longer.
func TimeToLive(ms int64) time.Duration {
	return time.Duration(min(ms, int64(LongestDuration/time.Millisecond))) * time.Millisecond
}
