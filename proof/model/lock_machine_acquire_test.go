package model_test

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

// acquire acquires the model's lock. It says whether the lock was free.
func (m *lockMachine) acquire(n *lockName, ttl time.Duration) bool {
	if n.key.Left == model.Forever {
		m.counts.add("foreign key given a TTL")
	}
	return n.key.Acquire(len(m.handles)+1, int64(ttl+keyMargin)) == 0
}

// granted checks a lock that was just acquired.
func (m *lockMachine) granted(t *rapid.T, n *lockName, locker int, lock *sluice.Lock, before time.Time, ttl time.Duration, fenced bool) {
	h := &handle{lock: lock, locker: locker, of: n, token: len(m.handles) + 1}
	n.holders[locker], n.tokens[h.token] = h, lock.Token()
	require.Equal(t, h.token, n.key.Token, "the lock was not free")
	m.add(t, h, before, ttl, fenced)
}

// add adds the handle of a lock that was acquired or adopted.
func (m *lockMachine) add(t *rapid.T, h *handle, before time.Time, ttl time.Duration, fenced bool) {
	h.deadline, h.ctx = h.lock.Deadline(), h.lock.Context()
	m.handles = append(m.handles, h)
	began(t, h.deadline, before, ttl)
	require.Equal(t, h.of.name, h.lock.Name())
	require.Equal(t, h.of.tokens[h.token], h.lock.Token())
	m.sameFence(t, h.lock, &h.of.fence, before, fenced)
}

func (m *lockMachine) tryLock(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	m.elapse()
	h := m.holder(n, locker)
	free := h == nil
	if !free {
		h.wanted = true
	}
	if free {
		n.holders[locker] = nil
		free = m.acquire(n, ttl)
	}
	before := time.Now()
	lock, err := m.lockers[locker].TryLock(context.Background(), n.name, opts...)
	if free {
		require.NoError(t, err)
		m.granted(t, n, locker, lock, before, ttl, fenced)
		m.counts.add("try lock: acquired" + either(fenced, ", fenced", ""))
	} else {
		require.ErrorIs(t, err, sluice.ErrLocked)
		m.counts.add("try lock: locked")
	}
	m.end(t)
}

// lockCall is a call of Lock with a context that ends at end.
type lockCall struct {
	of      *lockName
	locker  int
	ttl     time.Duration
	fenced  bool
	opts    []sluice.LockOption
	before  time.Time // the call's begin
	turn    time.Time // when the caller becomes the head of the wait queue
	expires time.Time // when a caller that polls from turn on finds the lock free
	early   time.Time // likewise, if the turn comes at once
	end     time.Time
}

// drawLock draws a call of Lock, and skips those of which the model cannot say how they end.
func (m *lockMachine) drawLock(t *rapid.T) lockCall {
	c := lockCall{of: m.drawName(t), locker: m.drawLocker(t)}
	c.ttl, c.fenced, c.opts = m.drawOptions(t)
	wait := rapid.SampledFrom(m.waits).Draw(t, "wait")
	m.elapse()
	c.before, c.turn = m.at, m.at
	if h := m.holder(c.of, c.locker); h != nil {
		c.turn, h.wanted = h.deadline, true // until then the wait queue has a head that holds
		if lost := c.of.key.Token != h.token; lost && c.of.key.Left == model.Forever {
			t.Skip("the turn is not known to the millisecond")
		} else if learns := c.before.Add(retryInterval); lost && learns.Before(c.turn) && m.virtual {
			c.turn = learns // at the latest, by an inspection
		}
	}
	c.expires, c.early = m.expires(c.of, c.turn, c.ttl), m.expires(c.of, c.before, c.ttl)
	if h := m.holder(c.of, c.locker); h != nil && c.of.key.Token == h.token {
		c.early = c.expires
	}
	if c.expires.After(c.before.Add(wait)) {
		wait = min(wait, 2*time.Second) // Lock will fail; it polls often enough in that time
	}
	c.end = c.before.Add(wait)
	if near := c.expires.Sub(c.end); c.expires.After(c.before) && near > -3*retryInterval && near < retryInterval {
		t.Skip("too close to say")
	}
	if c.of.key.Left == model.Forever && !m.virtual {
		t.Skip("the deadline may pass before the first attempt")
	}
	return c
}

// lock calls Lock with a context that ends. The lock becomes free when a TTL ends, or not in
// time.
func (m *lockMachine) lock(t *rapid.T) {
	c := m.drawLock(t)
	ctx, cancel := context.WithDeadline(context.Background(), c.end)
	if !m.virtual && !c.expires.After(c.before) {
		cancel() // the lock is free: there is nothing to wait for
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	if c.expires.After(c.before) && rapid.Bool().Draw(t, "max wait") { // the bound of the wait instead of that of the context
		ctx = context.Background()
		c.opts = append(c.opts, sluice.WithMaxWait(max(time.Until(c.end), time.Millisecond)))
		m.counts.add("lock: max wait")
	}
	lock, err := m.lockers[c.locker].Lock(ctx, c.of.name, c.opts...)
	if c.expires.After(c.end) {
		m.stayedLocked(t, c)
		m.awaitReplies(t, c.of.name)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if m.virtual { // on a real server the reply may arrive after the deadline
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		m.counts.add("lock: locked")
		m.end(t)
		return
	}
	require.NoError(t, err)
	c.of.holders[c.locker] = nil
	if m.virtual {
		require.LessOrEqual(t, time.Until(c.early), time.Duration(0), "before the key had expired")
		require.Less(t, time.Since(later(c.expires, c.before)), 2*retryInterval)
	}
	m.elapse()
	if c.of.key.Left == model.Forever {
		m.acquire(c.of, c.ttl) // it was given a TTL, which has run out
		c.of.key = model.Key{}
	}
	m.acquire(c.of, c.ttl)
	m.granted(t, c.of, c.locker, lock, c.before, c.ttl, c.fenced)
	m.counts.add("lock: acquired" + either(c.expires.After(c.before), " after its holder's TTL", ""))
	m.end(t)
}

// expires returns when a caller that polls from turn on finds the lock free.
func (m *lockMachine) expires(n *lockName, turn time.Time, ttl time.Duration) time.Time {
	left := time.Duration(n.key.Left)
	switch {
	case n.key.Token == 0:
		return turn
	case n.key.Left == model.Forever:
		return turn.Add(ttl + keyMargin)
	}
	return later(turn, m.at.Add(left))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stayedLocked brings the model to the end of a Lock that failed.
func (m *lockMachine) stayedLocked(t *rapid.T, c lockCall) {
	if m.virtual {
		require.Equal(t, c.end, time.Now(), "when Lock returned")
	}
	if !c.turn.Before(c.end) {
		return
	}
	c.of.holders[c.locker] = nil
	if c.of.key.Left == model.Forever {
		require.False(t, m.acquire(c.of, c.ttl))
		c.of.key.Left += int64(c.turn.Sub(m.at))
	}
}

// lockEnded calls Lock and TryLock with a context that has ended: nothing is sent.
func (m *lockMachine) lockEnded(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := m.lockers[locker].Lock(ctx, n.name)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, sluice.ErrLocked)
	_, err = m.lockers[locker].TryLock(ctx, n.name)
	require.ErrorIs(t, err, context.Canceled)
	m.counts.add("lock: ended")
	m.end(t)
}
