package model

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
)

// This file has how a task is shown.

func (it Item) entry() sluice.Entry {
	e := sluice.Entry{ID: it.ID, Score: it.Score, Attempt: it.Attempt, Take: it.Take}
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
	switch s {
	case sluice.StateLeased:
		if lasts, ok := strings.CutSuffix(it.Claimant, "/"); ok {
			seconds, _ := strconv.ParseFloat(lasts, 64)
			t.LeasedSince = store.TimeOf(it.Token - seconds)
		}
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
