package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
)

// LockInfo is a lock that is held.
type LockInfo struct {
	Name string
	// TTL is when it is freed at the latest, unless its holder extends it. It is negative for one
	// without, which only clients of other libraries make.
	TTL time.Duration
	// Owner is the label that its holder has given itself, "" for none.
	Owner string
	// Owners are the labels of all holders that have one.
	Owners []string
	// Holders is how many hold it, and Waiting how many processes wait in line for it: see
	// sluice.LockInfo.
	Holders, Waiting int
	// WaitingOwners are the labels of the first of those that wait.
	WaitingOwners []string
}

// lookers is how many locks are inspected at the same time; the library sends those in pipelines.
const lookers = 128

// Locks finds up to limit locks that are held and whose names match, in the order of their names.
// match is a pattern as SCAN has it: * for any text, ? for one byte, [ab] for one of several; ""
// for all. With more locks than the limit, it is any of them: ask for one more than you show.
//
// It takes two SCANs for each thousand keys of a primary, whatever they are, until it has found
// enough, and one small script for each lock.
func Locks(ctx context.Context, rdb redis.UniversalClient, o Options, match string, limit int) ([]LockInfo, error) {
	names, incomplete := lockNames(ctx, rdb, o, match, limit)
	if incomplete != nil && len(names) == 0 {
		return nil, wrap("search for locks", incomplete)
	}
	locker, err := sluice.NewLocker(rdb, sluice.WithLockPrefix(o.LockKeys()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = locker.Close() }()
	infos, err := inspectAll(ctx, locker, names)
	if err != nil {
		return nil, wrap("search for locks", err)
	}
	slices.SortFunc(infos, func(a, b LockInfo) int { return cmp.Compare(a.Name, b.Name) })
	return infos, wrap("search for locks", incomplete)
}

// Lock looks at one lock, and reports whether it is held.
func Lock(ctx context.Context, locker *sluice.Locker, name string) (info LockInfo, held bool, err error) {
	found, err := locker.Inspect(ctx, name)
	return LockInfo{Name: name, TTL: found.TTL, Owner: found.Owner, Owners: found.Owners, Holders: found.Holders, Waiting: found.Waiting, WaitingOwners: found.WaitingOwners}, found.Held, err
}

// lockNames finds the names of up to limit locks.
func lockNames(ctx context.Context, rdb redis.UniversalClient, o Options, match string, limit int) ([]string, error) {
	if match == "" {
		match = "*"
	}
	prefix := o.LockKeys()
	found := map[string]bool{}
	var names []string
	note := func(keys []string) bool {
		for _, key := range keys {
			name, ok := strings.CutPrefix(key, prefix)
			if _, err := keyspace.Key(prefix, name); !ok || err != nil || found[name] {
				continue
			}
			if len(names) >= limit {
				return false
			}
			found[name] = true
			names = append(names, name)
		}
		return len(names) < limit
	}
	// A name with permits is a sorted set.
	for _, kind := range []string{"string", "zset"} {
		if err := scan(ctx, rdb, o, Literal(prefix)+match, kind, note); err != nil || len(names) >= limit {
			return names, err
		}
	}
	return names, nil
}

// inspectAll asks for each lock, and leaves out those that are free by now, or hold what this
// library did not write.
func inspectAll(ctx context.Context, locker *sluice.Locker, names []string) ([]LockInfo, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all, held := make([]LockInfo, len(names)), make([]bool, len(names))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(lookers, len(names)) {
		workers.Go(func() {
			for i := range next {
				var err error
				if all[i], held[i], err = Lock(ctx, locker, names[i]); err != nil && !errors.Is(err, sluice.ErrCorrupt) {
					cancel(err)
				}
			}
		})
	}
	for i := range names {
		if context.Cause(ctx) != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	infos := make([]LockInfo, 0, len(names))
	for i, info := range all {
		if held[i] {
			infos = append(infos, info)
		}
	}
	return infos, nil
}
