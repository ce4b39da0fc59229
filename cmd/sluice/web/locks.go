package web

import (
	"context"
	"errors"
	"net/http"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// mostLocks is how many locks one page lists.
const mostLocks = 250

// locksData is what the page of the locks shows.
type locksData struct {
	Locks      []inspect.LockInfo
	Match      string
	More       bool // there are others
	Incomplete bool // not all keys were looked at
}

// foundLocks is what a look at the locks has found.
type foundLocks struct {
	locks      []inspect.LockInfo
	incomplete bool
}

// showLocks shows the locks that are held.
func (p *page) showLocks(v *visit) error {
	match := fromShown(v.r.URL.Query().Get("match"))
	if len(match) > 1000 {
		match = match[:1000]
	}
	found, err := p.locks.get(v.ctx, lookKey{what: match}, func(ctx context.Context) (foundLocks, error) {
		locks, err := inspect.Locks(ctx, p.rdb, p.keys, match, mostLocks+1)
		if errors.Is(err, inspect.ErrIncomplete) { // what was found is shown all the same
			return foundLocks{locks, true}, nil
		}
		return foundLocks{locks, false}, err
	})
	if err != nil {
		return err
	}
	data := locksData{Locks: found.locks, Match: match, Incomplete: found.incomplete}
	if len(found.locks) > mostLocks {
		data.Locks, data.More = found.locks[:mostLocks], true
	}
	return v.render(http.StatusOK, "locks", "Locks", "locks", data)
}

// lockData is what the page of a lock shows.
type lockData struct {
	Name string
	Info sluice.LockInfo
}

// showLock shows a lock, held or not.
func (p *page) showLock(v *visit) error {
	info, err := p.locker.Inspect(v.ctx, v.lock())
	if err != nil {
		return err
	}
	return v.render(http.StatusOK, "lock", shown(v.lock()), "locks", lockData{v.lock(), info})
}
