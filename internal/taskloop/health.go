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

// health is what a loop knows of the server of a shard.
type health struct {
	outages *outages
	shard   int
	logged  bool // the beginning of this outage; then its end is too

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
	f := &h.failures[what]
	if !h.isOut() {
		h.outSince = now
		f.persistent = f.times > 0
		h.logged = h.outages.begin(h.shard, now, err)
	}
	h.retryAt = now.Add(backoff.Half(backoff.Exponential(retryFirst, retryLast, f.times)))
	f.times++
}

// reset forgets the failures of an activity.
func (h *health) reset(what activity) { h.failures[what] = failure{} }

// noteSuccess notes that Redis works. The outage is over, unless one activity fails
// persistently: then one command is denied where others are not, and to begin a new outage
// with each of its failures would flood the log.
func (h *health) noteSuccess(what activity) {
	h.reset(what)
	persistent := slices.ContainsFunc(h.failures[:], func(f failure) bool { return f.persistent })
	if !h.isOut() || persistent {
		return
	}
	h.outages.end(h.shard, h.logged, time.Since(h.outSince))
	h.outSince, h.retryAt = time.Time{}, time.Time{}
}

// noteSuccess notes that Redis works.
func (f *feed) noteSuccess(what activity) {
	if f.handling == 0 {
		f.health.reset(renewing) // nothing is extended that could fail
	}
	f.health.noteSuccess(what)
}

// logPause is how long the log says nothing of further shards that fail: a node has many.
const logPause = 10 * time.Second

// outages logs the beginning and the end of outages, once each. Of shards that fail beside
// others, it logs one in logPause.
type outages struct {
	log    *slog.Logger
	shards int // of the queue

	out     int       // shards that fail
	lastLog time.Time // of a beginning
}

// begin reports whether it has logged the beginning of an outage.
func (o *outages) begin(shard int, now time.Time, err error) bool {
	o.out++
	if o.out > 1 && now.Sub(o.lastLog) < logPause {
		return false
	}
	o.lastLog = now
	o.log.Warn("sluice: worker cannot use its queue, trying on", append(o.which(shard), slog.Any("error", err))...)
	return true
}

// end takes the end of an outage.
func (o *outages) end(shard int, logged bool, after time.Duration) {
	o.out--
	if logged {
		o.log.Info("sluice: worker uses its queue again", append(o.which(shard), slog.Duration("after", after))...)
	}
}

// which says of a queue with several shards which one it is about, and how many fail.
func (o *outages) which(shard int) []any {
	if o.shards == 1 {
		return nil
	}
	return []any{slog.Int("shard", shard), slog.Int("failing", o.out)}
}
