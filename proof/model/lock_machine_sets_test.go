package model_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// setCall is a call of LockAll.
type setCall struct {
	locker int
	names  []string
	of     []*lockName // the same in the order of their keys, each once
	ttl    time.Duration
	fenced bool
	opts   []sluice.LockOption
}

// drawSet draws a call of LockAll, and returns the first of its names that is not free before it
// ends. It skips a call of which the model cannot say how it ends.
func (m *lockMachine) drawSet(t *rapid.T) (c setCall, locked *lockName) {
	c.locker = m.drawLocker(t)
	c.ttl, c.fenced, c.opts = m.drawOptions(t)
	order := rapid.SampledFrom([][]int{{0, 1}, {1, 0}, {1, 0, 1}, {1}}).Draw(t, "names")
	for _, i := range order {
		c.names = append(c.names, m.names[i].name)
	}
	c.of = m.names[2-len(uniqueNames(c.names)):]
	m.elapse()
	wait := min(m.waits[len(m.waits)-1], 50*time.Millisecond)
	for _, n := range c.of {
		h := m.holder(n, c.locker)
		if h != nil && n.key.Token != h.token {
			t.Skip("not known when it learns of that")
		}
		if h == nil && n.key.Token == 0 {
			continue
		}
		if n.key.Left < int64(wait+2*retryInterval) { // Forever, too
			t.Skip("not locked until the end")
		}
		if h != nil {
			h.wanted = true
		}
		if locked == nil {
			locked = n
		}
	}
	if locked != nil {
		c.opts = append(c.opts, sluice.WithMaxWait(wait))
	}
	return c, locked
}

func uniqueNames(names []string) map[string]bool {
	unique := map[string]bool{}
	for _, name := range names {
		unique[name] = true
	}
	return unique
}

// lockAll takes several names together, in any order. If one is locked, none is taken.
func (m *lockMachine) lockAll(t *rapid.T) {
	c, locked := m.drawSet(t)
	set, err := m.lockers[c.locker].LockAll(context.Background(), c.names, c.opts...)
	if locked == nil {
		require.NoError(t, err)
		m.holdSet(t, c, set)
		m.counts.add("lock all: acquired")
		m.end(t)
		return
	}
	require.Nil(t, set)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if m.virtual { // on a real server the reply may arrive after the deadline
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.ErrorContains(t, err, locked.name)
	}
	m.awaitReplies(t, c.names...)
	for _, n := range c.of {
		if m.holder(n, c.locker) == nil {
			n.holders[c.locker] = nil // it was asked for
		}
		if n == locked {
			break
		}
		require.Eventually(t, func() bool {
			return m.virtual || errors.Is(m.rdb.Get(context.Background(), "Lock:"+n.name).Err(), redis.Nil)
		}, time.Minute, time.Millisecond, "a lock of a set that was not acquired")
	}
	m.counts.add("lock all: locked")
	m.end(t)
}

// holdSet holds a set, perhaps for longer than its TTL, and releases it. One of its locks may get
// lost.
func (m *lockMachine) holdSet(t *rapid.T, c setCall, set *sluice.LockSet) {
	for _, n := range c.of {
		n.holders[c.locker] = nil
		require.Equal(t, set.Get(n.name).Token(), m.rdb.Get(context.Background(), "Lock:"+n.name).Val())
		m.sameFence(t, set.Get(n.name), &n.fence, m.at, c.fenced)
	}
	if m.virtual && rapid.Bool().Draw(t, "renewed") {
		time.Sleep(2 * c.ttl) // the bubble's clock
	}
	require.True(t, set.Valid())
	require.NoError(t, set.Context().Err())
	if rapid.Bool().Draw(t, "lost") {
		n := rapid.SampledFrom(c.of).Draw(t, "which")
		require.NoError(t, m.rdb.Del(context.Background(), "Lock:"+n.name).Err())
		err := set.Unlock(context.Background())
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorContains(t, err, n.name)
		m.counts.add("lock all: one was lost")
	} else {
		require.NoError(t, set.Unlock(context.Background()))
	}
	require.False(t, set.Valid())
	require.Error(t, set.Context().Err())
}

// baskets lets callers wait for both names, each in an order of its own, and then releases both one
// by one. Each caller gets both: none waits for another in a circle.
func (m *lockMachine) baskets(t *rapid.T) {
	locker, swapped := m.drawLocker(t), rapid.Bool().Draw(t, "swapped")
	ttl, _, opts := m.drawOptions(t)
	crowd := rapid.SliceOfN(rapid.IntRange(0, 5), 2, 4).Draw(t, "lockers and orders")
	m.elapse()
	first, second := m.names[0], m.names[1]
	if first.key.Token != 0 || second.key.Token != 0 {
		t.Skip("held")
	}
	m.endHandles(t, first)
	m.endHandles(t, second)
	set, err := m.lockers[locker].LockAll(context.Background(), []string{first.name, second.name}, opts...)
	require.NoError(t, err)
	w := &baskets{highest: map[string]int64{first.name: first.fence, second.name: second.fence}}
	var waiters sync.WaitGroup
	for _, one := range crowd {
		names := []string{first.name, second.name}
		if one >= len(m.lockers) {
			names = []string{second.name, first.name}
		}
		waiters.Go(func() { w.take(m.lockers[one%len(m.lockers)], names, opts) })
		m.letWait()
	}
	if swapped {
		first, second = second, first
	}
	require.NoError(t, set.Get(first.name).Unlock(context.Background()))
	m.letWait()
	require.NoError(t, set.Get(second.name).Unlock(context.Background()))
	waiters.Wait()
	require.Empty(t, w.failures)
	require.Equal(t, len(crowd), w.taken)
	if m.virtual {
		require.Less(t, time.Since(m.at), ttl, "a caller had to wait for a TTL")
	}
	for _, n := range m.names {
		n.fence = max(n.fence, w.highest[n.name])
	}
	m.counts.add("baskets")
	m.end(t)
}

// baskets is callers that want the same locks at the same time.
type baskets struct {
	mu            sync.Mutex // guards what follows
	inside, taken int
	highest       map[string]int64 // fence of each name
	failures      []string
}

// take takes the named locks, and releases them.
func (w *baskets) take(l *sluice.Locker, names []string, opts []sluice.LockOption) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := l.DoAll(ctx, names, func(ctx context.Context) error {
		w.enter(ctx, names)
		defer w.leave()
		return nil
	}, opts...)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failures = append(w.failures, err.Error())
	}
}

func (w *baskets) enter(ctx context.Context, names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken++
	if w.inside++; w.inside > 1 {
		w.failures = append(w.failures, "two inside")
	}
	for _, name := range names {
		lock := sluice.LockFromContext(ctx, name)
		if fence := lock.Fence(); !lock.Valid() || fence != 0 && fence <= w.highest[name] {
			w.failures = append(w.failures, "a lock that is not valid, or a fence that is not higher")
		}
		w.highest[name] = max(w.highest[name], lock.Fence())
	}
}

func (w *baskets) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside--
}
