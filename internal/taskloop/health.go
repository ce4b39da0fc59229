package taskloop

import (
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
)

const (
	// retryFirst and retryLast bound the pause after something that failed.
	retryFirst = 10 * time.Millisecond
	retryLast  = time.Second
)

// activity is something that may fail while the others succeed.
type activity int

const (
	exchanging activity = iota
	claiming            // within the lease
	renewing
	watching
	activities
)

// health is what a loop knows of the server of a queue.
type health struct {
	log *slog.Logger

	outSince time.Time // since when Redis fails; zero if it does not
	retryAt  time.Time // no exchange goes out before
	failures [activities]failure
}

type failure struct {
	times      int  // in a row
	persistent bool // it went on when another activity had succeeded
}

func (h *health) isOut() bool { return !h.outSince.IsZero() }

// noteFailure notes that Redis fails, and has the next exchange wait.
func (h *health) noteFailure(what activity, err error) {
	now := time.Now()
	q := &h.failures[what]
	if !h.isOut() {
		h.outSince = now
		q.persistent = q.times > 0
		h.log.Warn("sluice: worker cannot use its queue, trying on", slog.Any("error", err))
	}
	h.retryAt = now.Add(backoff.Half(backoff.Exponential(retryFirst, retryLast, q.times)))
	q.times++
}

// reset forgets the failures of an activity.
func (h *health) reset(what activity) { h.failures[what] = failure{} }

// noteSuccess notes that Redis works. The outage is over, unless one activity fails
// persistently: then one command is denied where others are not, and to begin a new outage
// with each of its failures would flood the log.
func (h *health) noteSuccess(what activity) {
	h.reset(what)
	persistent := slices.ContainsFunc(h.failures[:], func(q failure) bool { return q.persistent })
	if !h.isOut() || persistent {
		return
	}
	h.log.Info("sluice: worker uses its queue again", slog.Duration("after", time.Since(h.outSince)))
	h.outSince, h.retryAt = time.Time{}, time.Time{}
}

// noteSuccess notes that Redis works.
func (q *queue) noteSuccess(what activity) {
	if q.active == 0 {
		q.health.reset(renewing) // nothing is extended that could fail
	}
	q.health.noteSuccess(what)
}
