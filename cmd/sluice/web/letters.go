package web

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

func isNotFound(err error) bool { return errors.Is(err, sluice.ErrNotFound) }

// matcher returns what reports whether a task is meant: by the filter as a visitor has written it,
// or as it is if its texts were copied from a page.
func (l listing) matcher(ctx context.Context, s *series) (func(sluice.TaskInfo) bool, error) {
	written, err := l.read(s.page.now(ctx))
	if err != nil {
		return nil, err
	}
	var c crew
	if l.Worker != "" {
		c = s.crew(ctx)
	}
	copied, err := l.copied().read(s.page.now(ctx))
	return func(t sluice.TaskInfo) bool { return written.Fits(t, c.find) || err == nil && copied.Fits(t, c.find) }, nil
}

// isSearched reports whether the tasks that are meant have to be searched for: the server itself
// knows those that wait in a group.
func (l listing) isSearched() bool {
	rest := l.filter
	if l.State == sluice.StateWaiting {
		rest.Group = ""
	}
	return rest.IsSet()
}

// part reads up to n tasks behind one, those that died or were done last first.
func (l listing) part(ctx context.Context, q *sluice.Queue, after sluice.TaskInfo, n int) ([]sluice.TaskInfo, error) {
	f := inspect.Filter{Kind: l.Kind, Group: l.Group}
	options := f.Options(l.State)
	if l.isNewestFirst() {
		options = append(options, sluice.NewestFirst())
	}
	part, err := q.List(ctx, l.State, after, n, options...)
	for i := 0; i < len(part) && err == nil; i++ {
		err = f.AddKind(ctx, q, &part[i])
	}
	return part, err
}

// isNewestFirst reports whether the list begins at its end: with what died or was done last.
func (l listing) isNewestFirst() bool {
	return l.State == sluice.StateDead || l.State == sluice.StateDone
}

// search calls each with the tasks of a listing that match, until each returns false, no task is
// left, or it has gone on for so long. last is the task behind which it goes on, nil at the end.
func search(ctx context.Context, q *sluice.Queue, l listing, matches func(sluice.TaskInfo) bool, long time.Duration, each func(sluice.TaskInfo) bool) (last *sluice.TaskInfo, searched int, err error) {
	after := l.After
	for until := time.Now().Add(long); searched == 0 || time.Now().Before(until); {
		part, err := l.part(ctx, q, after, mostPerPage)
		if err != nil {
			return nil, searched, err
		}
		for i := range part {
			searched++
			part[i].Kind, part[i].Payload, part[i].Header = strings.Clone(part[i].Kind), nil, nil
			after = part[i]
			if matches(part[i]) && !each(part[i]) {
				return &part[i], searched, nil
			}
		}
		if len(part) < mostPerPage {
			return nil, searched, nil
		}
	}
	return &after, searched, nil
}

const (
	// mostReasonsOf is at how many dead letters a page looks for their reasons, and longestReasons for
	// how long.
	mostReasonsOf, longestReasons = 20_000, 2 * time.Second
	// mostReasons is how many reasons a page lists.
	mostReasons = 8
)

// reasons are why the dead letters of a queue are dead.
type reasons struct {
	inspect.Reasons
	Bars    []reasonBar // of the most frequent
	Rest    int         // how many other reasons there are
	Letters int         // how many letters have those
	Err     string
}

// reasonBar is a reason with how many letters have it.
type reasonBar struct {
	inspect.ReasonCount
	Percent  int    // of those of the most frequent reason
	URL      string // of the letters with this reason
	Selected bool
}

// whyDead returns the reasons, each with the link that lists its letters. That they cannot be read
// is told there: the rest of the page is good without them.
func (s *series) whyDead(ctx context.Context, l listing) reasons {
	found, err := s.reasons.get(ctx)
	if err != nil {
		_, why := explain(err)
		return reasons{Err: why.What + ": " + why.Detail}
	}
	r := reasons{Reasons: found, Letters: found.Others}
	for i, c := range found.Counts {
		if i >= mostReasons {
			r.Rest++
			r.Letters += c.Count
			continue
		}
		of := listing{State: sluice.StateDead, filter: filter{Reason: c.Reason}, N: l.N}
		r.Bars = append(r.Bars, reasonBar{c, max(1, 100*c.Count/found.Counts[0].Count), s.page.queueURL(s.name) + of.Query(), c.Reason != "" && strings.EqualFold(c.Reason, l.Reason)})
	}
	return r
}
