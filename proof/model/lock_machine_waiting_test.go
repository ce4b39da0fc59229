package model_test

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// waiting lets callers wait for a lock that is held, until their contexts end. Meanwhile each
// process of theirs is in line once, whatever the number of its callers, unless it holds the lock
// itself: its callers wait behind the holder, and ask no server.
func (m *lockMachine) waiting(t *rapid.T) {
	n := m.drawName(t)
	crowd := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 4).Draw(t, "lockers")
	m.elapse()
	if n.key.Token == 0 || n.key.Left < int64(10*retryInterval) { // Forever, too
		t.Skip("not held until the end")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, locker := range crowd {
		if h := m.holder(n, locker); h == nil {
			n.holders[locker] = nil
		} else if h.wanted = true; n.key.Token != h.token {
			t.Skip("not known when it learns of that")
		}
	}
	w := m.await(ctx, n, crowd)
	if m.virtual {
		for range rapid.IntRange(0, 4).Draw(t, "retry intervals") {
			time.Sleep(retryInterval) // the bubble's clock
		}
	}
	m.elapse()
	m.inLine(t, n, crowd)
	cancel()
	for _, err := range w() {
		require.ErrorIs(t, err, context.Canceled)
		if m.virtual { // on a real server the first reply may arrive after the context has ended
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
	}
	m.awaitReplies(t, n.name)
	m.inLine(t, n, nil)
	m.end(t)
}

// await starts callers that wait for a lock, and returns a function that waits for their errors.
func (m *lockMachine) await(ctx context.Context, n *lockName, lockers []int) (failures func() []error) {
	errs := make([]error, len(lockers))
	var waiters sync.WaitGroup
	for i, locker := range lockers {
		waiters.Go(func() { _, errs[i] = m.lockers[locker].Lock(ctx, n.name) })
		m.letWait()
	}
	return func() []error {
		waiters.Wait()
		return errs
	}
}

// inLine compares what Inspect says of the line with what it must be while callers of these
// processes wait. On a real server it may take a moment until they have subscribed and joined, or
// left.
func (m *lockMachine) inLine(t *rapid.T, n *lockName, crowd []int) {
	processes := map[int]bool{}
	for _, locker := range crowd {
		if m.holder(n, locker) == nil {
			processes[locker] = true
		}
	}
	is := func() int {
		info, err := m.lockers[0].Inspect(context.Background(), n.name)
		require.NoError(t, err)
		return info.Waiting
	}
	if m.virtual {
		m.learn() // what is due now is done
		require.Equal(t, len(processes), is(), "how many processes wait")
	} else {
		require.Eventually(t, func() bool { return is() == len(processes) }, time.Minute, 100*time.Microsecond, "not %d processes wait", len(processes))
	}
	if len(crowd) > 0 {
		m.counts.add("waiting: " + either(len(processes) == 0, "behind their own holder", either(len(processes) == 1, "one process", "several processes")))
	}
}
