package model_test

import (
	"context"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// detach ends a handle. The key stays as it is, unless the handle had passed its deadline.
func (m *lockMachine) detach(t *rapid.T) {
	h := m.drawHandle(t)
	m.elapse()
	token, err := h.lock.Detach(context.Background())
	switch {
	case h.valid():
		require.NoError(t, err)
		require.Equal(t, h.of.tokens[h.token], token)
		require.ErrorIs(t, context.Cause(h.ctx), context.Canceled)
		m.counts.add("detach: done")
	case h.over:
		require.ErrorIs(t, err, h.gone())
		m.counts.add("detach: not held")
	default: // it is released in the background
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		synctest.Wait()
		h.of.key.Release(h.token)
		m.counts.add("detach: after the deadline")
	}
	m.over(h)
	m.end(t)
}

// adopt adopts a lock by the token of a handle. That handle may have let go of the lock, or have
// lost it, or it may be valid still: the lock then has two.
func (m *lockMachine) adopt(t *rapid.T) {
	old, locker := m.drawHandle(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	m.needRoom(t, locker, old.token)
	if h := old.of.holders[locker]; h != nil && h.token == old.token {
		t.Skip("not known which of the two UnlockAll releases first")
	}
	m.elapse()
	before := time.Now()
	lock, err := m.lockers[locker].Adopt(context.Background(), old.of.name, old.lock.Token(), opts...)
	if old.of.key.Extend(old.token, int64(ttl+keyMargin)) {
		require.NoError(t, err)
		h := &handle{lock: lock, locker: locker, of: old.of, token: old.token, adopted: true}
		m.add(t, h, before, ttl, fenced)
		m.setApart(h)
		m.counts.add("adopt: " + either(old.valid(), "held twice", "done"))
	} else {
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		m.counts.add("adopt: not held")
	}
	m.end(t)
}
