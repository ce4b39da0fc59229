package model_test

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// handOver lets several callers wait for a lock that is held, and unlocks it. Each caller
// gets the lock, one after the other; those of one process in the order of their calls.
func (m *lockMachine) handOver(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	crowd := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 4).Draw(t, "lockers")
	m.elapse()
	if n.key.Token != 0 {
		t.Skip("it is held")
	}
	m.endHandles(t, n)
	w := &relay{machine: m, name: n, fenced: fenced, called: make([][]int, len(m.lockers)), got: make([][]int, len(m.lockers))}
	first, err := m.lockers[locker].Lock(context.Background(), n.name, opts...)
	require.NoError(t, err)
	w.enter(first, locker, -1)
	var waiters sync.WaitGroup
	for i, locker := range crowd {
		w.called[locker] = append(w.called[locker], i)
		waiters.Go(func() { w.take(i, locker, opts) })
		m.letWait()
	}
	w.leave(first)
	waiters.Wait()
	require.Empty(t, w.failures)
	require.Equal(t, len(crowd)+1, w.grants)
	if m.virtual {
		require.Equal(t, w.called, w.got, "the order in a process")
		require.Less(t, time.Since(m.at), ttl, "a caller had to wait for a TTL")
	}
	m.end(t)
}

// endHandles ends the handles of a name that is free. Else they would stay at the head of the wait
// queue.
func (m *lockMachine) endHandles(t *rapid.T, n *lockName) {
	for _, h := range m.handles {
		if h.of == n && !h.over {
			require.ErrorIs(t, h.lock.Unlock(context.Background()), sluice.ErrNotHeld)
			m.over(h)
		}
	}
	n.holders = [3]*handle{}
}

// relay follows a lock from caller to caller.
type relay struct {
	machine *lockMachine
	name    *lockName
	fenced  bool

	mu          sync.Mutex // guards what follows
	called, got [][]int    // by locker, the callers in their order
	grants      int
	inside      int
	token       string
	old         *sluice.Lock
	failures    []string
}

// take gets the lock and releases it.
func (w *relay) take(i, locker int, opts []sluice.LockOption) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lock, err := w.machine.lockers[locker].Lock(ctx, w.name.name, opts...)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failures = append(w.failures, err.Error())
		return
	}
	w.enter(lock, locker, i)
	w.leave(lock)
}

// enter checks a lock that a caller has just got.
func (w *relay) enter(lock *sluice.Lock, locker, i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	check := func(ok bool, failure string) {
		if !ok {
			w.failures = append(w.failures, failure)
		}
	}
	w.grants++
	w.inside++
	if i >= 0 {
		w.got[locker] = append(w.got[locker], i)
	}
	check(w.inside == 1, "two inside")
	check(lock.Valid(), "a lock that is not valid")
	check(!w.fenced || lock.Fence() > w.name.fence, "a fence that is not higher")
	w.name.fence = max(w.name.fence, lock.Fence())
	if w.old != nil {
		check(!w.old.Valid(), "an old handle is valid")
		check(w.old.Extend(context.Background(), time.Hour) != nil, "an old handle extends")
		check(w.old.Unlock(context.Background()) != nil, "an old handle unlocks")
		w.machine.counts.add(either(lock.Token() == w.token, "handed over", "released to the next"))
	}
	w.old, w.token = lock, lock.Token()
}

// leave releases the lock.
func (w *relay) leave(lock *sluice.Lock) {
	w.mu.Lock()
	w.inside--
	w.mu.Unlock()
	if err := lock.Unlock(context.Background()); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failures = append(w.failures, err.Error())
	}
}
