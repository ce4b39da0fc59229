package model_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

func (m *lockMachine) unlock(t *rapid.T) {
	h := m.drawHandle(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rapid.Bool().Draw(t, "ended") {
		cancel()
		m.counts.add("context ended")
	}
	m.elapse()
	late, ours := !h.valid(), !h.over && h.of.key.Release(h.token)
	err := h.lock.Unlock(ctx)
	if !m.virtual && ctx.Err() != nil && errors.Is(err, sluice.ErrUnknown) {
		// A busy machine did not answer within the 15 ms that Unlock waits with such a
		// context. The release goes on in the background: it must arrive.
		require.Eventually(t, func() bool {
			return m.rdb.Get(context.Background(), "Lock:"+h.of.name).Val() != h.of.tokens[h.token]
		}, time.Minute, time.Millisecond)
		m.counts.add("unlock: unknown")
		m.over(h)
		m.end(t)
		return
	}
	if ours {
		require.NoError(t, err)
		m.counts.add("unlock: done" + either(late, " after the deadline", ""))
	} else {
		require.ErrorIs(t, err, h.gone())
		m.counts.add("unlock: " + either(h.closed, "closed", "not held"))
	}
	m.over(h)
	m.end(t)
}

// over marks a handle as ended.
func (m *lockMachine) over(h *handle) {
	m.leave(h)
	if h.of.holders[h.locker] == h {
		h.of.holders[h.locker] = nil
	}
}

func (m *lockMachine) extend(t *rapid.T) {
	h, ttl := m.drawHandle(t), m.drawTTL(t)
	m.elapse()
	before, valid := time.Now(), h.valid()
	err := h.lock.Extend(context.Background(), ttl)
	switch {
	case !valid:
		require.ErrorIs(t, err, h.gone())
		m.counts.add("extend: " + either(h.over, "not held", "after the deadline"))
	case !h.of.key.Extend(h.token, int64(ttl+keyMargin)):
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
		m.over(h)
		m.counts.add("extend: not held")
	default:
		require.NoError(t, err)
		h.extended(t, before, ttl, m.virtual)
		m.counts.add("extend: done")
	}
	m.end(t)
}

func (m *lockMachine) ttl(t *rapid.T) {
	h := m.drawHandle(t)
	m.elapse()
	left, err := h.lock.TTL(context.Background())
	if !h.over && h.of.key.Token == h.token {
		require.NoError(t, err)
		m.sameTTL(t, h.of.key.Left, left)
		m.counts.add("ttl: held")
	} else {
		require.ErrorIs(t, err, h.gone())
		if !h.over {
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
			m.over(h)
		}
		m.counts.add("ttl: not held")
	}
	m.end(t)
}

func (m *lockMachine) inspect(t *rapid.T) {
	n := m.drawName(t)
	info, err := m.lockers[m.drawLocker(t)].Inspect(context.Background(), n.name)
	require.NoError(t, err)
	m.elapse()
	require.Equal(t, n.key.Token != 0, info.Held)
	if m.inLine(t, n, nil); m.virtual {
		require.Zero(t, info.Waiting)
	}
	if info.Held {
		m.sameTTL(t, n.key.Left, info.TTL)
	}
	m.counts.add("inspect: " + either(n.key.Left == model.Forever, "without TTL", either(info.Held, "held", "not held")))
	m.end(t)
}

func (m *lockMachine) forceUnlock(t *rapid.T) {
	n := m.drawName(t)
	m.elapse()
	locker, token := m.drawLocker(t), n.key.Token
	want := n.key.Force()
	held, err := m.lockers[locker].ForceUnlock(context.Background(), n.name)
	require.NoError(t, err)
	require.Equal(t, want, held)
	for _, h := range m.heldBy(locker) {
		if held && h.of == n && h.token == token {
			m.over(h)
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
			m.counts.add("force unlock: the locker's own")
		}
	}
	m.counts.add("force unlock: " + either(held, "held", "not held"))
	m.end(t)
}

func (m *lockMachine) unlockAll(t *rapid.T) {
	locker := m.drawLocker(t)
	m.elapse()
	require.NoError(t, m.lockers[locker].UnlockAll(context.Background()))
	for _, h := range m.heldBy(locker) {
		valid := h.valid()
		// What the server says was lost before, or what had passed its deadline, is lost.
		h.closed = h.of.key.Release(h.token) && valid
		if m.over(h); valid {
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrClosed)
		}
	}
	m.counts.add("unlock all")
	m.end(t)
}

// heldBy returns what a Locker holds as far as it knows, in the order in which it releases that.
func (m *lockMachine) heldBy(locker int) []*handle {
	held := slices.Clone(m.apart[locker])
	for _, n := range m.names {
		if h := n.holders[locker]; h != nil {
			held = append(held, h)
		}
	}
	return held
}

// foreign sets a key as a client of another library does, with or without TTL.
func (m *lockMachine) foreign(t *rapid.T) {
	n, ttl := m.drawName(t), rapid.SampledFrom(append([]time.Duration{0, 0}, m.ttls...)).Draw(t, "TTL")
	m.elapse()
	set, err := m.rdb.SetNX(context.Background(), "Lock:"+n.name, "php", ttl).Result()
	require.NoError(t, err)
	require.Equal(t, n.key.Token == 0, set)
	if set {
		n.key = model.Key{Token: foreign, Left: int64(ttl)}
		if ttl == 0 {
			n.key.Left = model.Forever
		}
		m.counts.add("foreign key")
	}
	m.end(t)
}

// lose deletes a key, as an eviction or a failover may.
func (m *lockMachine) lose(t *rapid.T) {
	n := m.drawName(t)
	require.NoError(t, m.rdb.Del(context.Background(), "Lock:"+n.name).Err())
	n.key = model.Key{}
	m.counts.add("key lost")
	m.end(t)
}

func (m *lockMachine) advance(t *rapid.T) {
	m.pass(t)
	m.end(t)
}
