package model_test

import (
	"context"
	"errors"
	"slices"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

func (m *permitMachine) unlock(t *rapid.T) {
	h := m.drawHandle(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rapid.Bool().Draw(t, "ended") {
		cancel()
	}
	m.elapse()
	late, ours := !h.valid(), !h.over && m.permits.Release(m.now(), h.token)
	err := h.lock.Unlock(ctx)
	switch {
	case !m.virtual && ctx.Err() != nil && errors.Is(err, sluice.ErrUnknown):
		m.awaitReleased(t, h) // a busy machine, see lockMachine.unlock
	case ours:
		require.NoError(t, err)
		m.counts.add("unlock: done" + either(late, " after the deadline", ""))
	default:
		require.ErrorIs(t, err, h.gone())
		m.counts.add("unlock: " + either(h.closed, "closed", "not held"))
	}
	m.leave(h)
	m.end(t)
}

// awaitReleased waits until a release in the background was carried out.
func (m *permitMachine) awaitReleased(t *rapid.T, h *handle) {
	require.Eventually(t, func() bool {
		err := m.rdb.ZScore(context.Background(), "Lock:"+m.name, m.tokens[h.token]).Err()
		return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") // the name is held plainly by now
	}, time.Minute, time.Millisecond)
}

// margin is how much longer than a TTL an extension keeps the permit.
func (h *handle) margin() time.Duration {
	if h.adopted {
		return adoptedMargin
	}
	return permitMargin
}

func (m *permitMachine) extend(t *rapid.T) {
	h, ttl := m.drawHandle(t), m.drawTTL(t)
	m.elapse()
	before, valid := time.Now(), h.valid()
	err := h.lock.Extend(context.Background(), ttl)
	switch {
	case !valid:
		require.ErrorIs(t, err, h.gone())
		m.counts.add("extend: " + either(h.over, "not held", "after the deadline"))
	case !m.permits.Extend(m.now(), h.token, (ttl + h.margin()).Milliseconds()):
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
		m.leave(h)
		m.counts.add("extend: not held")
	default:
		require.NoError(t, err)
		h.extended(t, before, ttl, m.virtual)
		m.rewrites++
		m.counts.add("extend: done")
	}
	m.end(t)
}

func (m *permitMachine) ttl(t *rapid.T) {
	h := m.drawHandle(t)
	m.elapse()
	left, err := h.lock.TTL(context.Background())
	if ends := m.permits.Ends(h.token); !h.over && ends > 0 {
		require.NoError(t, err)
		m.sameEnd(t, ends, m.now()+left.Milliseconds())
		m.counts.add("ttl: held")
	} else {
		require.ErrorIs(t, err, h.gone())
		if !h.over {
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
			m.leave(h)
		}
		m.counts.add("ttl: not held")
	}
	m.end(t)
}

func (m *permitMachine) inspect(t *rapid.T) {
	m.elapse()
	info, err := m.lockers[m.drawLocker(t)].Inspect(context.Background(), m.name)
	require.NoError(t, err)
	held := len(m.permits.Held)
	switch {
	case m.key.Token != 0:
		require.Equal(t, 1, info.Holders)
		require.InDelta(t, m.key.Left, info.TTL, float64(m.tolerance))
		m.counts.add("inspect: the plain lock")
	case held > 0:
		require.True(t, info.Held)
		require.Equal(t, held, info.Holders)
		m.sameEnd(t, m.permits.Held[held-1].Ends, m.now()+info.TTL.Milliseconds())
		m.counts.add("inspect: held")
	default:
		for until := time.Now().Add(10 * time.Second); !m.virtual && info.Waiting > 0 && time.Now().Before(until); {
			info, err = m.lockers[0].Inspect(context.Background(), m.name) // on a real server one that has left is in line for a moment
			require.NoError(t, err)
		}
		require.Equal(t, sluice.LockInfo{}, info)
		m.counts.add("inspect: not held")
	}
	m.end(t)
}

func (m *permitMachine) forceUnlock(t *rapid.T) {
	m.elapse()
	locker, isPlain := m.drawLocker(t), m.key.Force()
	tokens := m.permits.Force(m.now())
	held, err := m.lockers[locker].ForceUnlock(context.Background(), m.name)
	require.NoError(t, err)
	require.Equal(t, isPlain || len(tokens) > 0, held)
	for _, h := range slices.Clone(m.apart[locker]) {
		if slices.Contains(tokens, h.token) {
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
			m.leave(h)
			m.counts.add("force unlock: the locker's own")
		}
	}
	m.counts.add("force unlock: " + either(isPlain, "the plain lock", either(held, "held", "not held")))
	m.end(t)
}

func (m *permitMachine) unlockAll(t *rapid.T) {
	locker := m.drawLocker(t)
	m.elapse()
	require.NoError(t, m.lockers[locker].UnlockAll(context.Background()))
	for _, h := range slices.Clone(m.apart[locker]) {
		valid := h.valid()
		// What the server says was lost before, or what had passed its deadline, is lost.
		h.closed = m.permits.Release(m.now(), h.token) && valid
		if m.leave(h); valid {
			require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrClosed)
		}
	}
	m.counts.add("unlock all")
	m.end(t)
}

// plain takes the name as a plain lock, or gives it back.
func (m *permitMachine) plain(t *rapid.T) {
	m.elapse()
	ctx := context.Background()
	if lock := m.plainLock; lock != nil {
		m.plainLock = nil
		if m.key.Release(plainToken) {
			require.NoError(t, lock.Unlock(ctx))
		} else {
			require.ErrorIs(t, lock.Unlock(ctx), sluice.ErrNotHeld)
		}
		m.counts.add("plain: released")
		m.end(t)
		return
	}
	refused := len(m.permits.Held) > 0
	if !refused && m.rdb.Exists(ctx, "Lock:"+m.name).Val() > 0 {
		t.Skip("the last millisecond of the last permit's key")
	}
	ttl := m.drawTTL(t)
	lock, err := m.plainLocker.TryLock(ctx, m.name, sluice.WithTTL(ttl))
	if refused {
		require.ErrorIs(t, err, sluice.ErrInvalid)
	} else {
		require.NoError(t, err)
		m.plainLock, m.key = lock, model.Key{Token: plainToken, Left: int64(ttl + keyMargin)}
	}
	m.counts.add("plain: " + either(refused, "refused", "acquired"))
	m.end(t)
}

func (m *permitMachine) detach(t *rapid.T) {
	h := m.drawHandle(t)
	m.elapse()
	token, err := h.lock.Detach(context.Background())
	switch {
	case h.valid():
		require.NoError(t, err)
		require.Equal(t, m.tokens[h.token], token)
		m.counts.add("detach: done")
	case h.over:
		require.ErrorIs(t, err, h.gone())
		m.counts.add("detach: not held")
	default: // it is released in the background
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		synctest.Wait()
		m.permits.Release(m.now(), h.token)
		m.counts.add("detach: after the deadline")
	}
	m.leave(h)
	m.end(t)
}

// adopt adopts a permit by the token of a handle, which may be valid still.
func (m *permitMachine) adopt(t *rapid.T) {
	old, c := m.drawHandle(t), m.drawCall(t)
	m.needRoom(t, c.locker, old.token)
	c.opts = append(c.opts, sluice.WithPermits(old.permits))
	lock, err := m.lockers[c.locker].Adopt(context.Background(), m.name, old.lock.Token(), c.opts...)
	switch {
	case m.permits.Extend(m.now(), old.token, (c.ttl + adoptedMargin).Milliseconds()):
		require.NoError(t, err)
		m.add(t, &handle{lock: lock, locker: c.locker, permits: old.permits, token: old.token, adopted: true}, c)
		m.counts.add("adopt: done")
	default:
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		m.counts.add("adopt: not held")
	}
	m.end(t)
}

// lose deletes the key, as an eviction or a failover may.
func (m *permitMachine) lose(t *rapid.T) {
	m.elapse()
	require.NoError(t, m.rdb.Del(context.Background(), "Lock:"+m.name).Err())
	m.permits.Held, m.key = nil, model.Key{}
	m.counts.add("key lost")
	m.end(t)
}
