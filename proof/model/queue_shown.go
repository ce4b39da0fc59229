package model

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
)

// This file has how tasks are shown.

func (it Item) entry() sluice.Entry {
	e := sluice.Entry{ID: it.ID, Score: it.Score, Attempt: it.Attempt, Take: it.Take, Group: it.Group}
	if it.Payload != "" {
		e.Payload = []byte(it.Payload)
	}
	return e
}

// waiting returns the entry of a task that is not leased: it is due at its score.
func (it Item) waiting() sluice.Entry {
	e := it.entry()
	e.Due = store.TimeOf(e.Score)
	return e
}

// info returns a task in a state as it is shown. That of a leased one has no receipt.
func (it Item) info(s sluice.State) sluice.TaskInfo {
	t := sluice.TaskInfo{Entry: it.waiting(), State: s, Reason: it.Error}
	if it.Error != "" {
		t.FailedAt = store.TimeOf(it.FailedAt)
	}
	if lasts, ok := strings.CutSuffix(it.Claimant, "/"); ok && it.Lease != 0 && s != sluice.StateDead {
		seconds, _ := strconv.ParseFloat(lasts, 64)
		t.LeasedSince = store.TimeOf(it.Token - seconds)
	}
	switch s {
	case sluice.StateLeased:
		t.LeaseEnds, t.Score, t.Due = store.ExactTimeOf(it.Score), 0, time.Time{}
	case sluice.StateDead:
		t.DiedAt, t.Score, t.Due, t.Reason = store.TimeOf(it.Died), it.Died, time.Time{}, it.Reason
	}
	return t
}

// info returns a record as it is shown.
func (r Record) info() sluice.TaskInfo {
	t := sluice.TaskInfo{Entry: sluice.Entry{ID: r.ID, Score: r.At, Attempt: r.Attempt}, State: sluice.StateDone, DoneAt: store.TimeOf(r.At)}
	if r.Result != "" {
		t.Result = []byte(r.Result)
	}
	return t
}

// Get returns a task, a dead letter, or a record.
func (q *Queue) Get(now float64, id string) (t sluice.TaskInfo, ok bool) {
	it := *q.Item(id)
	switch s := it.state(now); s {
	case sluice.StateAbsent:
		r, done := q.shown(id)
		return r.info(), done && q.retained(now, r)
	case sluice.StateDead:
		t = it.info(s)
	case sluice.StateWaiting:
		t = it.awaited()
	default:
		t = it.current(now).info(s)
	}
	return t, true
}

// Stats counts tasks and dead letters.
func (q *Queue) Stats(now float64) (s sluice.Stats) {
	oldest, next := now, math.Inf(1)
	for _, it := range q.Items {
		if it.Listed {
			s.Dead++
		}
		switch {
		case it.Queued && it.Score <= now:
			s.Due++
			oldest = min(oldest, it.Score)
		case it.Queued:
			s.Scheduled++
			next = min(next, it.Score)
		}
	}
	s.GroupWaiting = int64(len(q.Awaiting))
	ahead := s.Scheduled > 0
	s.Leased = int64(len(q.Index(now)))
	s.Scheduled = max(s.Scheduled-s.Leased, 0)
	s.Paused, s.Trimmed, s.Limits = q.IsPaused(now), q.Trimmed, q.Limits
	s.Finished, s.Discarded, s.Retried, s.Buried, s.Lost = q.Finished, q.Discarded, q.Retried, q.Buried, q.Lost
	for _, r := range q.Records {
		if q.retained(now, r) {
			s.Done++
		}
	}
	s.Lateness = time.Duration((now-oldest)*1e6) * time.Microsecond
	if ahead {
		s.NextDue = store.TimeOf(next)
	}
	return s
}
