package virtualtime

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// alone is how many calls of a kind a Queue sends before others wait and are merged.
const alone = 2

// mergedKind is a kind of calls that are merged: each of the callers 0 to n-1 makes one.
type mergedKind struct {
	name string
	// prepare has the queue ready for n callers.
	prepare func(g *merging, n int)
	call    func(g *merging, ctx context.Context, i int) error
	// isDone reports whether the server has carried out a caller's call.
	isDone func(g *merging, i int) bool
	// afterLoss checks the error of a call whose group's reply, or request, was lost.
	afterLoss func(g *merging, reply bool, err error)
}

var mergedKinds = []mergedKind{
	{
		"Enqueue",
		func(*merging, int) {},
		func(g *merging, ctx context.Context, i int) error {
			outcome, err := g.q.Enqueue(ctx, sluice.Task{ID: strconv.Itoa(i), Payload: []byte{byte(i)}})
			if err == nil {
				require.Equal(g, sluice.OutcomeAdded, outcome)
			}
			return err
		},
		func(g *merging, i int) bool { return g.state(i) != sluice.StateAbsent },
		func(g *merging, _ bool, err error) { require.ErrorIs(g, err, sluice.ErrUnknown) },
	},
	{
		"Dequeue",
		func(g *merging, n int) {
			g.enqueue(n)
			es, err := g.clean.Claim(g.Context(), n, time.Hour)
			require.NoError(g, err)
			require.Len(g, es, n)
			g.entries = es
		},
		func(g *merging, ctx context.Context, i int) error { return g.q.Dequeue(ctx, g.entries[i]) },
		func(g *merging, i int) bool {
			_, err := g.clean.Get(g.Context(), g.entries[i].ID)
			return errors.Is(err, sluice.ErrNotFound)
		},
		// It may be repeated: then either it was not carried out before, or the receipt is stale
		// and its caller is told that this may have been the first copy.
		func(g *merging, reply bool, err error) {
			if reply {
				require.ErrorIs(g, err, sluice.ErrUnknown)
				require.NotErrorIs(g, err, sluice.ErrStale)
				return
			}
			require.NoError(g, err)
		},
	},
	{
		"Claim",
		func(g *merging, n int) { g.enqueue(n) },
		func(g *merging, ctx context.Context, i int) error {
			es, err := g.q.Claim(ctx, 1, time.Hour)
			g.handOut(i, es)
			return err
		},
		func(g *merging, i int) bool { return g.claimed[i] != "" },
		func(g *merging, _ bool, err error) { require.ErrorIs(g, err, sluice.ErrUnknown) },
	},
}

// merging is a queue whose calls are merged.
type merging struct {
	network
	q, clean *sluice.Queue
	kind     mergedKind
	entries  []sluice.Entry // claimed by clean

	mu      sync.Mutex
	claimed map[int]string // by q: caller to ID
}

func eachMerged(t *testing.T, n int, test func(g *merging)) {
	t.Helper()
	for _, kind := range mergedKinds {
		t.Run(kind.name, func(t *testing.T) {
			faultyBubble(t, func(net network) {
				g := newMerging(net, kind, n)
				test(g)
				time.Sleep(time.Minute) // what lingers ends
			})
		})
	}
}

func newMerging(net network, kind mergedKind, n int) *merging {
	g := &merging{network: net, kind: kind, claimed: map[int]string{}}
	var err error
	g.q, err = sluice.NewQueue(net.faulty, "q")
	require.NoError(g, err)
	g.clean, err = sluice.NewQueue(net.clean, "q")
	require.NoError(g, err)
	require.NoError(g, g.q.Purge(g.Context()))
	kind.prepare(g, 1)
	require.NoError(g, kind.call(g, g.Context(), 0)) // the server knows the script
	g.connect()
	require.NoError(g, g.q.Purge(g.Context()))
	clear(g.claimed)
	kind.prepare(g, n)
	return g
}

// connect has a connection ready for each call that goes out alone: a new one would be held up.
func (g *merging) connect() {
	g.faults.Delay(time.Millisecond)
	defer g.faults.Delay(0)
	var all sync.WaitGroup
	for range alone {
		all.Go(func() { require.NoError(g, g.faulty.Ping(g.Context()).Err()) })
	}
	all.Wait()
}

// enqueue enqueues tasks that are due, in this order.
func (g *merging) enqueue(n int) {
	for i := range n {
		_, err := g.clean.Enqueue(g.Context(), sluice.Task{ID: strconv.Itoa(i), At: time.Now().Add(time.Duration(i-n) * time.Second)})
		require.NoError(g, err)
	}
}

func (g *merging) handOut(i int, es []sluice.Entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range es {
		g.claimed[i] += e.ID
	}
}

func (g *merging) state(i int) sluice.State {
	e, err := g.clean.Get(g.Context(), strconv.Itoa(i))
	if !errors.Is(err, sluice.ErrNotFound) {
		require.NoError(g, err)
	}
	return e.State
}

// outcome is what a call has returned.
type outcome struct {
	err error
	at  time.Time
}

// start makes the calls of the callers from to to-1 at the same time, and returns once all are
// sent or wait. The results are there after a wait for the group.
func (g *merging) start(ctx context.Context, from, to int, all *sync.WaitGroup) []outcome {
	outcomes := make([]outcome, to-from)
	for i := range outcomes {
		all.Go(func() {
			err := g.kind.call(g, ctx, from+i)
			outcomes[i] = outcome{err, time.Now()}
		})
		synctest.Wait() // they come in this order
	}
	return outcomes
}

// hold has as many calls under way as go out alone. Their replies come at Resume.
func (g *merging) hold(all *sync.WaitGroup) []outcome {
	g.faults.Stall()
	return g.start(g.Context(), 0, alone, all)
}

func (g *merging) requireDone(from, to int) {
	g.Helper()
	for i := from; i < to; i++ {
		require.True(g, g.kind.isDone(g, i), "caller %d", i)
	}
}

func requireNoErrors(t *testing.T, outcomes ...[]outcome) {
	t.Helper()
	for _, some := range outcomes {
		for i, o := range some {
			require.NoError(t, o.err, "caller %d", i)
		}
	}
}

func TestMerge_WhatComesMeanwhileIsOneScript(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all sync.WaitGroup
		before := g.faults.Scripts()
		first := g.hold(&all)
		rest := g.start(g.Context(), alone, 30, &all)
		require.Equal(g, alone, g.faults.Scripts()-before)
		start := time.Now()
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, first, rest)
		require.Zero(g, time.Since(start))
		require.Equal(g, alone+1, g.faults.Scripts()-before)
		g.requireDone(0, 30)
		for i, id := range g.claimed {
			require.Equal(g, strconv.Itoa(i), id, "the first who asked is given the first task")
		}
	})
}

// TestMerge_ACallerThatLeavesBeforeIsNotSent: its error is definite.
func TestMerge_ACallerThatLeavesBeforeIsNotSent(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all, left sync.WaitGroup
		g.hold(&all)
		ctx, cancel := context.WithTimeout(g.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		leave := g.start(ctx, 20, 30, &left)
		stay := g.start(g.Context(), alone, 20, &all)
		left.Wait()
		for _, o := range leave {
			require.ErrorIs(g, o.err, context.DeadlineExceeded)
			require.NotErrorIs(g, o.err, sluice.ErrUnknown)
			require.NotErrorIs(g, o.err, sluice.ErrUnavailable)
			require.Equal(g, 10*time.Millisecond, o.at.Sub(start))
		}
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, stay)
		g.requireDone(0, 20)
		for i := 20; i < 30; i++ {
			require.False(g, g.kind.isDone(g, i), "it was sent for a caller that had left")
		}
		if g.kind.name == "Claim" {
			require.EqualValues(g, 10, g.due())
		}
	})
}

func (g *merging) due() int64 {
	s, err := g.clean.Stats(g.Context())
	require.NoError(g, err)
	return s.Due
}

// TestMerge_ACallerThatLeavesAfterwardsHarmsNoOther: its own outcome is unknown. What was
// claimed for it is given to the next caller, and what is left is given back.
func TestMerge_ACallerThatLeavesAfterwardsHarmsNoOther(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all, left sync.WaitGroup
		g.hold(&all)
		ctx, cancel := context.WithCancel(g.Context())
		leave := g.start(ctx, 20, 30, &left)
		stay := g.start(g.Context(), alone, 20, &all)
		g.faults.StallFrom(1)
		g.resumeOne()
		cancel()
		start := time.Now()
		left.Wait()
		for _, o := range leave {
			require.ErrorIs(g, o.err, sluice.ErrUnknown)
			require.ErrorIs(g, o.err, context.Canceled)
			require.Equal(g, 15*time.Millisecond, o.at.Sub(start))
		}
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, stay)
		g.requireDone(0, 20)
		if g.kind.name != "Claim" {
			g.requireDone(20, 30) // and yet they don't know
			return
		}
		time.Sleep(time.Second)
		require.EqualValues(g, 10, g.due(), "what was claimed for those that left")
		es, err := g.clean.Claim(g.Context(), 30, time.Hour)
		require.NoError(g, err)
		require.Len(g, es, 10)
		for _, e := range es {
			require.Equal(g, 1, e.Attempt, "the attempt counts that no caller had")
		}
	})
}

// resumeOne lets the calls that are under way return, and holds the replies to what follows.
func (g *merging) resumeOne() {
	g.faults.Resume()
	g.faults.StallFrom(1)
	synctest.Wait()
}

// TestMerge_ALostReplyIsOfItsGroupOnly: and so is a lost request.
func TestMerge_ALostReplyIsOfItsGroupOnly(t *testing.T) {
	for _, reply := range []bool{true, false} {
		eachMerged(t, 30, func(g *merging) {
			var all sync.WaitGroup
			first := g.hold(&all)
			rest := g.start(g.Context(), alone, 20, &all)
			if reply {
				g.faults.DropReply(1)
			} else {
				g.faults.DropRequest(1)
			}
			g.faults.Resume()
			all.Wait()
			requireNoErrors(g.T, first)
			for _, o := range rest {
				g.kind.afterLoss(g, reply, o.err)
			}
			if g.kind.name == "Enqueue" {
				for i := alone; i < 20; i++ {
					require.Equal(g, reply, g.kind.isDone(g, i))
				}
			}
			if g.kind.name == "Claim" {
				require.Len(g, g.claimed, alone)
				return
			}
			last := g.start(g.Context(), 20, 30, &all)
			all.Wait()
			requireNoErrors(g.T, last)
		})
	}
}

// TestMerge_ARefusedGroupIsRefusedToEach: the error is definite, and nothing was done.
func TestMerge_ARefusedGroupIsRefusedToEach(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all sync.WaitGroup
		first := g.hold(&all)
		rest := g.start(g.Context(), alone, 30, &all)
		require.NoError(g, g.network.clean.Rename(g.Context(), "Queue:q", "kept").Err())
		require.NoError(g, g.network.clean.Set(g.Context(), "Queue:q", "foreign", 0).Err())
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, first)
		for _, o := range rest {
			require.ErrorIs(g, o.err, sluice.ErrCorrupt)
			require.NotErrorIs(g, o.err, sluice.ErrUnknown)
		}
		require.NoError(g, g.network.clean.Rename(g.Context(), "kept", "Queue:q").Err())
		g.claimNone(alone, 30)
		again := g.start(g.Context(), alone, 30, &all)
		all.Wait()
		requireNoErrors(g.T, again)
	})
}

// claimNone requires that these callers were handed out nothing.
func (g *merging) claimNone(from, to int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := from; i < to; i++ {
		require.Empty(g, g.claimed[i])
	}
}

// TestMerge_WhatPassesIsTriedAgain: by each caller as long as it would be if it had been alone.
func TestMerge_WhatPassesIsTriedAgain(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all sync.WaitGroup
		g.hold(&all)
		ctx, cancel := context.WithTimeout(g.Context(), time.Second)
		defer cancel()
		start := time.Now()
		leave := g.start(ctx, 20, 30, &all)
		stay := g.start(g.Context(), alone, 20, &all)
		g.m.SetError("LOADING for a while")
		time.AfterFunc(5*time.Second, func() { g.m.SetError("") })
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, stay)
		for _, o := range leave {
			require.ErrorIs(g, o.err, sluice.ErrUnavailable)
			require.ErrorIs(g, o.err, context.DeadlineExceeded)
			require.NotErrorIs(g, o.err, sluice.ErrUnknown)
			require.Equal(g, time.Second, o.at.Sub(start))
		}
		g.requireDone(0, 20)
		for i := 20; i < 30; i++ {
			require.False(g, g.kind.isDone(g, i))
		}

		g.m.SetError("LOADING for long")
		start = time.Now()
		late := g.start(g.Context(), 20, 30, &all)
		all.Wait()
		for _, o := range late {
			require.ErrorIs(g, o.err, sluice.ErrUnavailable)
			require.InDelta(g, 10.5*float64(time.Second), float64(o.at.Sub(start)), float64(time.Second))
		}
		g.m.SetError("")
	})
}

// TestMerge_AHungServerHoldsNoCallerBeyondItsDeadline: those that are sent and those that wait.
func TestMerge_AHungServerHoldsNoCallerBeyondItsDeadline(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		var all sync.WaitGroup
		g.hold(&all)
		for i := alone; i < 30; i++ {
			ctx, cancel := context.WithTimeout(g.Context(), time.Duration(i)*10*time.Millisecond)
			defer cancel()
			deadline, _ := ctx.Deadline()
			all.Go(func() {
				err := g.kind.call(g, ctx, i)
				if !errors.Is(err, context.DeadlineExceeded) {
					g.Errorf("caller %d: %v", i, err)
				}
				if late := time.Since(deadline); late > 15*time.Millisecond {
					g.Errorf("caller %d returned %v after its deadline", i, late)
				}
			})
		}
		time.Sleep(time.Second)
		g.faults.Resume()
		all.Wait()
	})
}

// panicking is a hook that panics while it is told to.
type panicking struct{ on atomic.Bool }

func (*panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if p.on.Load() && cmd.Name() == "evalsha" {
			panic("a secret")
		}
		return err
	}
}

func (*panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestMerge_APanicOfTheClientIsEachCallersError(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		hook := &panicking{}
		g.faulty.AddHook(hook)
		var all sync.WaitGroup
		g.hold(&all)
		rest := g.start(g.Context(), alone, 20, &all)
		hook.on.Store(true)
		g.faults.Resume()
		all.Wait()
		hook.on.Store(false)
		for _, o := range rest {
			require.ErrorIs(g, o.err, sluice.ErrUnknown)
			require.NotContains(g, o.err.Error(), "secret")
		}
		if g.kind.name != "Claim" {
			last := g.start(g.Context(), 20, 30, &all)
			all.Wait()
			requireNoErrors(g.T, last)
		}
	})
}

func TestMerge_AClosedClientIsADefiniteError(t *testing.T) {
	eachMerged(t, 30, func(g *merging) {
		rdb := redis.NewClient(g.faulty.(*redis.Client).Options())
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(g, err)
		g.q = q
		var all sync.WaitGroup
		g.hold(&all)
		rest := g.start(g.Context(), alone, 30, &all)
		require.NoError(g, rdb.Close())
		all.Wait()
		for _, o := range rest {
			require.ErrorIs(g, o.err, redis.ErrClosed)
			require.NotErrorIs(g, o.err, sluice.ErrUnknown)
			require.NotErrorIs(g, o.err, sluice.ErrUnavailable)
		}
		g.faults.Resume()
	})
}
