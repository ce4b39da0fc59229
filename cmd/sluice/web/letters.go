package web

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

func isNotFound(err error) bool { return errors.Is(err, sluice.ErrNotFound) }

// matches reports whether a reason contains what a visitor has written, or copied from a page.
func matches(reason, wanted string) bool {
	return strings.Contains(reason, wanted) || strings.Contains(reason, fromShown(wanted))
}

// letters calls each with the dead letters of a listing that have its reason, until each returns
// false, no letter is left, or it has gone on for so long. last is the letter behind which it goes
// on, nil at the end.
func letters(ctx context.Context, q *sluice.Queue, l listing, long time.Duration, each func(sluice.TaskInfo) bool) (last *sluice.TaskInfo, searched int, err error) {
	after := l.After
	for until := time.Now().Add(long); searched == 0 || time.Now().Before(until); {
		part, err := q.List(ctx, sluice.StateDead, after, mostPerPage, sluice.WithoutPayloads())
		if err != nil {
			return nil, searched, err
		}
		for i := range part {
			searched++
			after = part[i]
			if matches(part[i].Reason, l.Reason) && !each(part[i]) {
				return &part[i], searched, nil
			}
		}
		if len(part) < mostPerPage {
			return nil, searched, nil
		}
	}
	return &after, searched, nil
}
