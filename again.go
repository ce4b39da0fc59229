package sluice

import (
	"errors"
	"fmt"
	"time"
)

// Again returns what a handler returns for a task that has not failed and is not done either: it is due again
// in d, by the server's clock, with its header and payload, and no attempt is used up. So a task may be put
// off any number of times, also on the last attempt that the queue allows: until a limit of requests has
// passed (HTTP 429), a lock is free, or a result is there.
//
// An error that wraps it, or joins it with others, means the same, with its own text in the log; joined with a
// Permanent one, Permanent wins. A version that was Deferred meanwhile takes the task's place instead, at its
// own time. A negative d counts as 0, one longer than 100 years as that. The server adds d to its time when the
// result arrives there.
func Again(d time.Duration) error {
	return &againError{min(max(d, 0), longest)}
}

// againError is what Again returns.
type againError struct{ delay time.Duration }

func (e *againError) Error() string { return fmt.Sprintf("due again in %v", e.delay) }

// againIn returns after how long a task is due again whose handler has returned err, and whether that says so.
func againIn(err error) (d time.Duration, ok bool) {
	var again *againError
	if !errors.As(err, &again) || IsPermanent(err) {
		return 0, false
	}
	return again.delay, true
}
