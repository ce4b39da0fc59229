package web

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"

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

// mostOwners is how many owners of one lock a page names.
const mostOwners = 8

// heldBy says who holds a lock, by their labels.
func heldBy(holders int, owners []string) template.HTML {
	const none = `<span class="none">no label</span>`
	switch {
	case holders <= 1 && len(owners) == 0:
		return none
	case holders <= 1:
		return short(owners[0])
	case len(owners) == 0:
		return template.HTML(fmt.Sprintf("%d permits, %s", holders, none))
	}
	names, times := []string{}, map[string]int{}
	for _, owner := range owners {
		if times[owner]++; times[owner] == 1 {
			names = append(names, owner)
		}
	}
	named, parts := 0, []string{}
	for _, name := range names[:min(len(names), mostOwners)] {
		part := string(short(name))
		if times[name] > 1 {
			part += fmt.Sprintf(" (%d)", times[name])
		}
		named += times[name]
		parts = append(parts, part)
	}
	if n := len(owners) - named; n > 0 {
		parts = append(parts, inspect.Plural(int64(n), "other"))
	}
	if n := holders - len(owners); n > 0 {
		parts = append(parts, fmt.Sprintf(`<span class="none">%d without a label</span>`, n))
	}
	return template.HTML(fmt.Sprintf("%d held by %s", holders, strings.Join(parts, ", ")))
}
