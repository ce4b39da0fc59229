package locks

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// mixedCrowd is clients of all kinds that want one lock, again and again.
type mixedCrowd struct {
	*testing.T
	name   string
	inside atomic.Int32
	fence  atomic.Int64
	all    sync.WaitGroup
	turns  []*atomic.Int32 // of each client
	kinds  []string
}

// add has a client take so many turns, unless ctx ends before. take waits for the lock, and returns
// the function that gives it back.
func (c *mixedCrowd) add(ctx context.Context, kind string, most int32, take func() (giveBack func())) {
	turns := new(atomic.Int32)
	c.turns, c.kinds = append(c.turns, turns), append(c.kinds, kind)
	c.all.Go(func() { // it ends with ctx, and the test waits for it
		for ctx.Err() == nil && turns.Load() < most {
			giveBack := take()
			if giveBack == nil {
				return
			}
			require.EqualValues(c, 1, c.inside.Add(1), "two holders")
			time.Sleep(rand.N(2 * time.Millisecond)) // work
			turns.Add(1)
			c.inside.Add(-1)
			giveBack()
			time.Sleep(rand.N(2 * time.Millisecond)) // other work
		}
	})
}

// addSluice adds a process with so many callers. They end after some turns: clients without a line
// have the lock then.
func (c *mixedCrowd) addSluice(ctx context.Context, kind string, rdb redis.UniversalClient, callers int, opts ...sluice.LockOption) {
	l := systest.NewLocker(c.T, rdb, append(opts, sluice.WithTTL(time.Minute))...)
	for range callers {
		c.add(ctx, kind, 50, func() func() {
			k, err := l.Lock(ctx, c.name)
			if err != nil {
				require.ErrorIs(c, err, context.Canceled)
				return nil
			}
			if fence := k.Fence(); fence > 0 {
				require.Greater(c, fence, c.fence.Swap(fence))
			}
			return func() { require.NoError(c, k.Unlock(context.WithoutCancel(ctx))) }
		})
	}
}

// addForeign adds a client without this library, which polls until try has the lock.
func (c *mixedCrowd) addForeign(ctx context.Context, kind string, rdb redis.UniversalClient, try func(key, token string) bool) {
	key, token, unbounded := "Lock:"+c.name, redistest.Name(c), context.WithoutCancel(ctx)
	c.add(ctx, kind, math.MaxInt32, func() func() {
		for !try(key, token) {
			if ctx.Err() != nil {
				return nil
			}
			time.Sleep(rand.N(5 * time.Millisecond)) // it polls
		}
		return func() {
			require.Equal(c, token, rdb.Get(unbounded, key).Val())
			require.NoError(c, rdb.Del(unbounded, key).Err())
		}
	})
}

// TestLocker_SharesANameWithClientsOfAllKinds: processes that merge their commands or do not, with
// fences or without, and clients that know of no line and poll. One at a time has the lock, and
// each of them again and again: those that poll when the line is empty at last.
func TestLocker_SharesANameWithClientsOfAllKinds(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	plain := *redistest.Redis(t)
	merging := plain
	merging.AutoPipeline = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &mixedCrowd{T: t, name: redistest.Name(t)}
	for range 2 {
		c.addSluice(ctx, "plain", plain.Client(t), 1)
		c.addSluice(ctx, "AutoPipeline", merging.Client(t), 1)
		rdb := plain.Client(t)
		c.addForeign(ctx, "SET NX PX", rdb, func(key, token string) bool {
			return rdb.SetNX(context.WithoutCancel(ctx), key, token, time.Minute).Val()
		})
		c.addForeign(ctx, "SETNX, EXPIRE", rdb, func(key, token string) bool {
			return rdb.Do(context.WithoutCancel(ctx), "setnx", key, token).Val() == int64(1) &&
				rdb.Expire(context.WithoutCancel(ctx), key, time.Minute).Val()
		})
	}
	c.addSluice(ctx, "plain, fenced", plain.Client(t), 2, sluice.WithFencing())
	c.addSluice(ctx, "AutoPipeline, fenced", merging.Client(t), 2, sluice.WithFencing())
	rdb := plain.Client(t)
	least := func() int32 {
		n := c.turns[0].Load()
		for _, turns := range c.turns {
			n = min(n, turns.Load())
		}
		return n
	}
	require.Eventually(t, func() bool { return least() >= 5 || t.Failed() }, time.Minute, time.Millisecond, "one of them starves")
	cancel()
	c.all.Wait()
	for i, kind := range c.kinds {
		t.Log(kind, c.turns[i].Load())
	}
	require.Eventually(t, func() bool {
		return rdb.Exists(t.Context(), "Lock:"+c.name, "{Lock:"+c.name+"}:line").Val() == 0
	}, 10*time.Second, 10*time.Millisecond, "something is left")
}
