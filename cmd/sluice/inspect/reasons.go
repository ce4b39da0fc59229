package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice"
)

const (
	// longestReason is how many characters of reasons are compared: behind them often stands what
	// differs with each task.
	longestReason = 120
	// mostReasons is how many reasons are told apart.
	mostReasons = 1000
)

// Reasons say why the dead letters of a queue are dead, and how many for each reason.
type Reasons struct {
	Counts []ReasonCount // the most frequent first
	Others int           // letters with reasons of which there are too many to tell them apart
	Looked int           // how many letters were looked at
	More   bool          // there are more letters
}

// ReasonCount is a reason and how many letters have it.
type ReasonCount struct {
	Reason string // no longer than what was compared
	Cut    bool   // it is longer
	Count  int
}

// ReasonsOf counts the reasons of a queue's dead letters: of so many letters at the most, the newest, and
// for so long. It changes nothing, and reads no payload. It needs a script for each 250 letters.
func ReasonsOf(ctx context.Context, q *sluice.Queue, most int, long time.Duration) (Reasons, error) {
	var r Reasons
	counts := map[string]*ReasonCount{}
	until := time.Now().Add(long)
	for t, err := range q.All(ctx, sluice.StateDead, sluice.WithoutPayloads(), sluice.NewestFirst()) {
		if err != nil {
			return r, err
		}
		if r.Looked == most || r.Looked > 0 && time.Now().After(until) {
			r.More = true
			break
		}
		r.Looked++
		reason := beginning(t.Reason, longestReason)
		known := counts[reason]
		switch {
		case known != nil:
			known.Count++
		case len(counts) == mostReasons:
			r.Others++
		default:
			reason = strings.Clone(reason)
			counts[reason] = &ReasonCount{reason, len(reason) < len(t.Reason), 1}
		}
	}
	for _, c := range counts {
		r.Counts = append(r.Counts, *c)
	}
	slices.SortFunc(r.Counts, func(a, b ReasonCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Reason, b.Reason))
	})
	return r, nil
}

// beginning returns the first n characters of a text, without a part of one.
func beginning(s string, n int) string {
	end := 0
	for range n {
		if end == len(s) {
			break
		}
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	return s[:end]
}
