package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

const (
	fleetHold      = time.Millisecond // a section
	fleetLead      = 2500 * time.Millisecond
	fleetPool      = 4
	fleetProcesses = 8

	sentPerSection = "sent/section"
	idealTurn      = "ideal turn"
	p99ToIdeal     = "p99/ideal"
	leastToMean    = "least/mean"
	mostToMean     = "most/mean"
)

// fleet is one name that many clients want: each stands for a process, with a small pool and a
// locker of its own.
type fleet struct {
	clients   int
	waiters   int // in each client
	processes int // that share the clients; 0 for this one
	permits   int
}

// fleets returns the scenarios of one name that the callers of many clients want.
func fleets() (all []scenario) {
	for _, clients := range []int{4, 300, 1000} {
		all = append(all, fleet{clients: clients, waiters: 1}.scenario("fleet-%d"))
	}
	return append(all,
		fleet{clients: 300, waiters: 1, processes: fleetProcesses}.scenario("fleet-procs-%d"),
		fleet{clients: 300, waiters: 4}.scenario("fleet-%dx4"),
		fleet{clients: 300, waiters: 1, permits: permitsOfName}.scenario("fleet-permits-%d"))
}

func (f fleet) scenario(name string) scenario {
	s := scenario{
		name:    fmt.Sprintf(name, f.clients),
		about:   f.about(),
		measure: perSecond,
		entries: enter(sluiceName, "redislock", "rueidislock", etcdName),
		length:  6 * time.Second,
		retry:   retryForFleets,
		columns: []column{
			{sentPerSection, median, threeDigits},
			{idealTurn, median, inTime},
			{p99ToIdeal, median, threeDigits},
			{leastToMean, median, threeDigits},
			{mostToMean, median, threeDigits},
		},
		turn: f.turn,
	}
	if f.permits > 0 {
		s.entries, s.retry = enter(sluiceName+" WithPermits"), 0
	}
	return s
}

func (f fleet) about() string {
	text := fmt.Sprintf("%d clients, each with a pool of %d connections", f.clients, fleetPool)
	if f.processes > 0 {
		text += fmt.Sprintf(" and in one of %d processes", f.processes)
	}
	if f.waiters > 1 {
		text += fmt.Sprintf(", and %d goroutines in each", f.waiters)
	}
	text += fmt.Sprintf(" on one name, sections of %v", fleetHold)
	if f.permits > 0 {
		text += fmt.Sprintf(", %d permits", f.permits)
	}
	return text + "; least and most are a client's sections"
}

// turn measures what the clients do once all of them have waited for a while.
func (f fleet) turn(ctx context.Context, t turn) (r result, err error) {
	lead, notes := fleetLead, ""
	if t.quick {
		lead = quickLength
		if all := f.clients; all > 4 {
			f.clients = max(all/25, 4)
			notes = fmt.Sprintf("%d clients only", f.clients)
		}
	}
	if err := f.fits(ctx, t.setup.Addr); err != nil {
		return result{}, err
	}
	g, file, remove, err := newSharedGuard()
	if err != nil {
		return result{}, err
	}
	defer remove()
	g.permits.Store(int64(f.permits))
	e := assignment{
		Setup: t.setup, Entrant: t.entrant.name, Lock: uniqueName("fleet"), Guard: file,
		Clients: f.clients, Size: f.clients * f.waiters, Lead: lead, Hold: fleetHold, Length: t.length,
	}
	e.Setup.Pool = fleetPool
	answers, err := f.carryOut(ctx, e)
	if err != nil {
		return result{}, err
	}
	r = f.result(answers, t.length)
	r.notes = notes
	return r, g.check()
}

// carryOut carries out an assignment in this process, or shares it among others.
func (f fleet) carryOut(ctx context.Context, e assignment) ([]answer, error) {
	if f.processes == 0 {
		a, err := e.here(ctx)
		return []answer{a}, err
	}
	var shares []assignment
	for i := range f.processes {
		share := e
		share.Clients = (i+1)*f.clients/f.processes - i*f.clients/f.processes
		share.Size = share.Clients * f.waiters
		if share.Clients > 0 {
			shares = append(shares, share)
		}
	}
	return workInProcesses(ctx, shares, func(context.Context) error { return nil })
}

// result sums up what the clients did. It has no figures if there was no section.
func (f fleet) result(answers []answer, length time.Duration) result {
	r := sumUp(answers, length)
	sections := r.ops
	r.ops, r.extra = 0, nil // the meter's columns would count the lead, too
	if sections == 0 {
		return r
	}
	var turns []int64
	var sent int64
	for _, a := range answers {
		turns = append(turns, a.Tally.Turns...)
		sent += a.Tally.Sent
	}
	mean := sections / float64(len(turns))
	// The wait of a caller to whom all others come first, once each.
	ideal := float64(f.clients*f.waiters) / r.value * float64(time.Second)
	r.extra = map[string]float64{
		sentPerSection: float64(sent) / sections,
		idealTurn:      ideal,
		p99ToIdeal:     float64(r.waits.ValueAtQuantile(99)) / ideal,
		leastToMean:    float64(slices.Min(turns)) / mean,
		mostToMean:     float64(slices.Max(turns)) / mean,
	}
	return r
}

// fits returns errNotHere if this process may not open as many connections as the fleet's clients
// need, or the server does not take them.
func (f fleet) fits(ctx context.Context, addr string) error {
	needed := f.clients*(fleetPool+2) + 100 // a subscription, one to spare, and the rest of the program
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	here := needed / max(f.processes, 1)
	if files.Cur < uint64(here) {
		return fmt.Errorf("%w: %d files may be open, and %d connections are needed (ulimit -n)", errNotHere, files.Cur, here)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	settings, err := rdb.ConfigGet(ctx, "maxclients").Result()
	if err != nil {
		return nil // a server that does not tell
	}
	if most, err := strconv.Atoi(settings["maxclients"]); err == nil && most < needed {
		return fmt.Errorf("%w: the server takes %d connections, and %d are needed (maxclients)", errNotHere, most, needed)
	}
	return nil
}

// openFleet opens clients, some at a time, and has each of them send something. It returns those
// that it opened, even if it fails.
func openFleet(ctx context.Context, open func(setup) (contender, error), s setup, n int) ([]contender, error) {
	clients := make([]contender, n)
	var group errgroup.Group
	group.SetLimit(32)
	for i := range clients {
		group.Go(func() (err error) {
			c, err := open(s)
			if err != nil {
				return err
			}
			clients[i] = c
			return warmUp(ctx, c, 1)
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(clients, func(c contender) bool { return c == nil }), err
}

// closeAll closes clients at the same time.
func closeAll(clients []contender) error {
	errs := make([]error, len(clients))
	var group errgroup.Group
	for i, c := range clients {
		group.Go(func() error {
			errs[i] = c.Close()
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}
