package shophttp

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

const (
	// lockTTL is how long buyers wait if a process dies while it holds the lock.
	lockTTL = 2 * time.Second
	// maxWait is how long a buyer waits for a turn: longer than the TTL, and than a restart of
	// Redis.
	maxWait = 6 * time.Second
)

// Guard has buyers take turns.
type Guard interface {
	// Do calls fn when it is the caller's turn, and returns fn's error, or why there was no turn.
	// The fence is higher than that of each turn before, or 0 in all turns. The wait ends with ctx.
	Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
}

// OpenGuard opens a guard on a client that stays the caller's. All processes of a sale give it the
// same name. The turn of a process that died must end by itself, within a few seconds.
type OpenGuard func(rdb *redis.Client, name string) (guard Guard, closeGuard func(), err error)

// The ways to sell that this package has. Other guards come from the caller of Main.
const (
	NoLock      = "no lock"
	Conditional = "conditional UPDATE"
	Sluice      = "Sluice"
)

// openGuard returns the guard of a way to sell.
func openGuard(rdb *redis.Client, method, name string, others map[string]OpenGuard) (Guard, func(), error) {
	switch open := others[method]; {
	case open != nil:
		return open(rdb, name)
	case method == Sluice:
		return openSluice(rdb, name)
	default:
		return unguarded{}, func() {}, nil
	}
}

// unguarded lets all buyers in at once.
type unguarded struct{}

func (unguarded) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return fn(ctx, 0)
}

// locked is a Locker, which renews the lock during a turn, and ends the turn's ctx if it is lost.
type locked struct {
	*sluice.Locker
	name string
}

func openSluice(rdb *redis.Client, name string) (Guard, func(), error) {
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(lockTTL), sluice.WithMaxWait(maxWait), sluice.WithFencing())
	if err != nil {
		return nil, nil, err
	}
	return locked{locker, name}, func() { _ = locker.Close() }, nil
}

func (l locked) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.Locker.Do(ctx, l.name, func(ctx context.Context) error {
		return fn(ctx, uint64(sluice.LockFromContext(ctx, l.name).Fence()))
	})
}
