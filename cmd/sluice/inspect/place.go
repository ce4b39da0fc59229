package inspect

import (
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
)

// TimeOf returns the time by which lists of its state sort a task: when it is due, when its lease
// ends, when it died, or when it was finished.
func TimeOf(t sluice.TaskInfo) time.Time {
	switch t.State {
	case sluice.StateLeased:
		return t.LeaseEnds
	case sluice.StateDead:
		return t.DiedAt
	case sluice.StateDone:
		return t.DoneAt
	}
	return t.Due
}

// Place returns the score by which lists of its state sort a task.
func Place(t sluice.TaskInfo) float64 {
	if t.State == sluice.StateLeased {
		return store.ScoreOf(t.LeaseEnds)
	}
	return t.Score
}

// Name returns what tells a task from others at its Place: its ID and, of one that waits in its
// group, that in front of it.
func Name(t sluice.TaskInfo) string {
	if t.State == sluice.StateWaiting { // a group has no zero byte
		return t.Group + "\x00" + t.ID
	}
	return t.ID
}

// At returns a task for List to go on behind: that of a Name, at its Place in the lists of a state.
func At(s sluice.State, place float64, name string) sluice.TaskInfo {
	t := sluice.TaskInfo{Entry: sluice.Entry{ID: name, Score: place}, State: s}
	if group, id, found := strings.Cut(name, "\x00"); found && s == sluice.StateWaiting {
		t.Group, t.ID = group, id
	}
	if s == sluice.StateLeased {
		t.LeaseEnds, t.Score = store.ExactTimeOf(place), 0
	}
	return t
}

// Take returns a task with a receipt, also if it is leased: what is done with that takes it from
// its holder.
func Take(t sluice.TaskInfo) sluice.Entry {
	e := t.Entry
	e.Score = Place(t)
	return e
}
