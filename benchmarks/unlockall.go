package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

const (
	latestReturn = "latest return"
	allReleased  = "all released"
)

// unlockAll measures how long a program waits that gives up all its locks at once, on a server
// that answers or on one that hangs.
func unlockAll(locks int, hung bool) scenario {
	name, server := fmt.Sprint("unlock-all-", locks), "a server that answers"
	if hung {
		name, server = name+"-hung", "a server that does not answer"
	}
	var entries []entrant
	for end, settings := range map[string]string{
		sluiceName: "UnlockAll with a context that has ended", sluiceName + ", Close": "Close",
	} {
		entries = append(entries, entrant{name: end, settings: "in unlock-all: WithAutoRenew; " + settings, open: openUnlocked})
	}
	slices.SortFunc(entries, func(a, b entrant) int { return len(a.name) - len(b.name) })
	return scenario{
		name: name,
		about: fmt.Sprintf("%d renewed locks (a hundredth with -quick) are given up at once, on %s of its own; how long after their"+
			" contexts' end other callers of the Locker return meanwhile, at most; and when all locks are free", locks, server),
		measure: duration,
		entries: entries,
		columns: []column{{latestReturn, slices.Max[[]float64], inTime}, {allReleased, median, inTime}},
		turn:    func(ctx context.Context, t turn) (result, error) { return unlockAllTurn(ctx, t, locks, hung) },
	}
}

// unlocked is a Locker on a server of its own.
type unlocked struct {
	locker
	rdb    *redis.Client
	server *redistest.Server
}

func openUnlocked(setup) (contender, error) {
	server, err := redistest.StartIn("", nil)
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	rdb := newClient(server.Addr)
	l, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Minute), sluice.WithAutoRenew())
	return unlocked{locker{l}, rdb, server}, err
}

// Close closes the client first: the server may hang, and what is left to release ends with it.
func (u unlocked) Close() error {
	err := u.rdb.Close()
	_ = u.Locker.Close() // nothing is sent any more
	u.server.Down()
	return err
}

func unlockAllTurn(ctx context.Context, t turn, locks int, hung bool) (r result, err error) {
	if t.quick {
		locks /= 100
	}
	u := t.contender.(unlocked)
	name := uniqueName("unlock-all")
	err = inParallel(ctx, poolSize, locks, func(ctx context.Context, i int) error {
		_, err := u.Lock(ctx, fmt.Sprint(name, "-", i))
		return err
	})
	if err != nil {
		return result{}, fmt.Errorf("lock: %w", err)
	}
	if hung {
		if err := u.server.Signal(syscall.SIGSTOP); err != nil {
			return result{}, err
		}
		defer func() { _ = u.server.Signal(syscall.SIGCONT) }()
	}
	giveUp := u.Locker.Close
	if t.entrant.name == sluiceName {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		giveUp = func() error { return u.UnlockAll(ended) }
	}
	began := time.Now()
	latest := latestOf(ctx, u.Locker, func() {
		if err := giveUp(); !errors.Is(err, sluice.ErrUnknown) { // its releases go on in the background
			r.failures.add(err)
		}
		r.value = float64(time.Since(began))
	})
	r.extra = map[string]float64{latestReturn: float64(latest), allReleased: 0}
	if !hung {
		err = allFree(ctx, u.server.Addr)
		r.extra[allReleased] = float64(time.Since(began))
	}
	return r, err
}

// allFree returns when the server has no lock any more.
func allFree(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	for {
		if n, err := rdb.DBSize(ctx).Result(); err != nil || n == 0 {
			return err
		}
		sleep(ctx, 5*time.Millisecond)
	}
}

// latestOf has other callers lock and unlock while do runs, each time with a context that ends
// after 20ms, and returns how long after that the latest call has returned.
func latestOf(ctx context.Context, l *sluice.Locker, do func()) time.Duration {
	var over atomic.Bool
	var mu sync.Mutex
	var latest time.Duration
	within := func(do func(ctx context.Context) error) error {
		bounded, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := do(bounded)
		mu.Lock()
		defer mu.Unlock()
		latest = max(latest, time.Since(began)-20*time.Millisecond)
		return err
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !over.Load() {
				var k *sluice.Lock
				_ = within(func(ctx context.Context) (err error) {
					k, err = l.Lock(ctx, uniqueName("other"))
					return err
				})
				if k != nil {
					_ = within(k.Unlock)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	do()
	over.Store(true)
	wg.Wait()
	return latest
}
