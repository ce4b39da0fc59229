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

// showLocks shows the locks that are held.
func (p *page) showLocks(v *visit) error {
	match := fromShown(v.r.URL.Query().Get("match"))
	if len(match) > 1000 {
		match = match[:1000]
	}
	locks, err := p.locks.get(v.ctx, lookKey{what: match}, func(ctx context.Context) ([]inspect.LockInfo, error) {
		return inspect.Locks(ctx, p.rdb, p.keys, match, mostLocks+1)
	})
	if err != nil && !errors.Is(err, inspect.ErrIncomplete) {
		return err
	}
	data := locksData{Locks: locks, Match: match, Incomplete: err != nil}
	if len(locks) > mostLocks {
		data.Locks, data.More = locks[:mostLocks], true
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
