package model_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

// permitResults are the results that a long run must have seen.
const permitResults = `adopt: done; adopt: not held; crowd; detach: done; detach: not held; extend: done; extend: not held; force unlock: held;
force unlock: not held; force unlock: the locker's own; force unlock: the plain lock; inspect: held; inspect: not held; inspect: the plain lock;
key lost; lock: acquired; lock: locked; lock: another number; plain: acquired; plain: refused; plain: released; try lock: acquired;
try lock: locked; try lock: another number; ttl: held; ttl: not held; unlock: done; unlock: not held; unlock: closed; unlock all`

// virtualPermitResults are those that need time to pass, besides permitResults.
const virtualPermitResults = `; advance; detach: after the deadline; extend: after the deadline; lock: acquired when one ended; unlock: done after the deadline`

// TestPermitMachine_VirtualTime compares the ends of permits to the millisecond.
func TestPermitMachine_VirtualTime(t *testing.T) {
	inVirtualTime(t, permitResults+virtualPermitResults, runPermitMachine)
}

func TestPermitMachine_RealServer(t *testing.T) { onRealServer(t, permitResults, runPermitMachine) }

func runPermitMachine(t *rapid.T, s *setting, name string) {
	m := newPermitMachine(t, s, name)
	defer func() { _ = m.plainLocker.Close() }()
	actions := map[string]func(*rapid.T){
		"TryLock": m.tryLock, "TryLock2": m.tryLock, "TryLock3": m.tryLock, "Lock": m.lock, "Crowd": m.crowd,
		"Unlock": m.unlock, "Extend": m.extend, "TTL": m.ttl, "Inspect": m.inspect, "Plain": m.plain,
		"ForceUnlock": m.forceUnlock, "UnlockAll": m.unlockAll, "Detach": m.detach, "Adopt": m.adopt, "Lose": m.lose,
	}
	if m.virtual {
		actions["Advance"] = m.advance
	}
	t.Repeat(actions)
}

const (
	// A permit's end is a whole millisecond, and the one in which it is taken has begun. There is
	// no hand-over to cover; an adopted lock has the margin of one that is handed over.
	permitMargin  = 3 * time.Millisecond
	adoptedMargin = keyMargin + time.Millisecond
	plainToken    = -2
)

// permitMachine performs an operation on a name with permits and on the model, and compares the
// results. At times a plain lock holds the name.
type permitMachine struct {
	*setting
	name        string
	permits     model.Permits // in milliseconds of Unix time
	key         model.Key     // of a plain lock
	plainLocker *sluice.Locker
	plainLock   *sluice.Lock // nil for none
	tokens      map[int]string
	handles     []*handle // all so far
	fence       int64     // the highest so far
	rewrites    int       // how often a script has given the key the TTL that it had, since it was new
	at          time.Time // the time of the model
}

func newPermitMachine(t *rapid.T, s *setting, name string) *permitMachine {
	l, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	require.NoError(t, s.rdb.Del(context.Background(), "Lock:"+name).Err())
	return &permitMachine{setting: s, name: name, plainLocker: l, tokens: map[int]string{}, at: time.Now()}
}

// elapse lets the time of the model pass until now.
func (m *permitMachine) elapse() {
	now := time.Now()
	m.permits.Elapse(now.UnixMilli())
	m.key.Elapse(int64(now.Sub(m.at)))
	m.at = now
}

func (m *permitMachine) now() int64 { return m.at.UnixMilli() }

// end compares the key and every handle with the model.
func (m *permitMachine) end(t *rapid.T) {
	if m.virtual {
		synctest.Wait() // alarms
	}
	m.elapse()
	ctx, key := context.Background(), "Lock:"+m.name
	if m.key.Token != 0 {
		require.Equal(t, m.plainLock.Token(), m.rdb.Get(ctx, key).Val())
	} else {
		m.samePermits(t, key)
	}
	for _, h := range m.handles {
		h.same(t)
	}
}

// samePermits compares the sorted set with the model, which takes the ends over: a real server has
// its own clock. The key lives as long as the last permit, in whole milliseconds: of miniredis,
// whose clock is finer, it loses a part of one with each script that reads its TTL and writes it
// again.
func (m *permitMachine) samePermits(t *rapid.T, key string) {
	ctx := context.Background()
	members, err := m.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	require.NoError(t, err)
	number, ends, last := 0, map[string]int64{}, m.now()
	for _, z := range members {
		if token, end := z.Member.(string), int64(z.Score); token == "" {
			number = int(-end)
		} else if end > m.now() {
			ends[token], last = end, max(last, end)
		}
	}
	require.Len(t, ends, len(m.permits.Held), "%v", members)
	if len(ends) > 0 {
		require.Equal(t, m.permits.Number, number)
	}
	for i := range m.permits.Held {
		h := &m.permits.Held[i]
		is, ok := ends[m.tokens[h.Token]]
		require.True(t, ok, "no permit")
		m.sameEnd(t, h.Ends, is)
		h.Ends = is
	}
	if len(ends) == 0 {
		m.rewrites = 0
	}
	left, slack := max(m.rdb.PTTL(ctx, key).Val(), 0), m.tolerance.Milliseconds()
	require.LessOrEqual(t, left.Milliseconds(), last-m.now()+slack, "the key lives for too long")
	require.GreaterOrEqual(t, left.Milliseconds(), last-m.now()-slack-int64(m.rewrites), "the key does not live long enough")
}

// sameEnd compares two times of the server's clock.
func (m *permitMachine) sameEnd(t *rapid.T, want, is int64) {
	if m.virtual {
		require.Equal(t, want, is, "a permit's end")
	}
	require.InDelta(t, want, is, float64(m.tolerance.Milliseconds()))
}

// acquire takes a permit of the model, and returns what Acquire does. A plain lock is as another
// number.
func (m *permitMachine) acquire(number int, ttl time.Duration) (left int64) {
	if m.key.Token != 0 {
		return model.OtherNumber
	}
	return m.permits.Acquire(m.now(), number, len(m.handles)+1, (ttl + permitMargin).Milliseconds())
}

// granted checks a permit that was just acquired.
func (m *permitMachine) granted(t *rapid.T, c permitCall, lock *sluice.Lock) {
	h := &handle{lock: lock, locker: c.locker, permits: c.number, token: len(m.handles) + 1}
	m.tokens[h.token] = lock.Token()
	m.add(t, h, c)
}

// add adds the handle of a permit that was acquired or adopted.
func (m *permitMachine) add(t *rapid.T, h *handle, c permitCall) {
	h.deadline, h.ctx = h.lock.Deadline(), h.lock.Context()
	m.handles = append(m.handles, h)
	m.setApart(h)
	m.rewrites++
	began(t, h.deadline, c.before, c.ttl)
	require.Equal(t, m.name, h.lock.Name())
	require.Equal(t, m.tokens[h.token], h.lock.Token())
	m.sameFence(t, h.lock, &m.fence, c.before, c.fenced)
}

// drawHandle draws one of the last handles.
func (m *permitMachine) drawHandle(t *rapid.T) *handle {
	if len(m.handles) == 0 {
		t.Skip("no handle yet")
	}
	return m.handles[len(m.handles)-1-rapid.IntRange(0, min(len(m.handles), 5)-1).Draw(t, "handle")]
}

// permitCall is a call of Lock, TryLock or Adopt.
type permitCall struct {
	locker, number int
	ttl            time.Duration
	fenced         bool
	opts           []sluice.LockOption
	before         time.Time // the call's begin
}

func (m *permitMachine) drawCall(t *rapid.T) (c permitCall) {
	c.locker, c.number = m.drawLocker(t), rapid.SampledFrom([]int{2, 2, 2, 3}).Draw(t, "permits")
	c.ttl, c.fenced, c.opts = m.drawOptions(t)
	c.opts = append(c.opts, sluice.WithPermits(c.number))
	m.needRoom(t, c.locker, len(m.handles)+1)
	m.elapse()
	c.before = m.at
	return c
}

func (m *permitMachine) tryLock(t *rapid.T) {
	c := m.drawCall(t)
	left := m.acquire(c.number, c.ttl)
	lock, err := m.lockers[c.locker].TryLock(context.Background(), m.name, c.opts...)
	m.tried(t, "try lock", c, left, lock, err)
}

// tried compares the result of a call with that of the model.
func (m *permitMachine) tried(t *rapid.T, op string, c permitCall, left int64, lock *sluice.Lock, err error) {
	switch {
	case left == model.OtherNumber:
		require.ErrorIs(t, err, sluice.ErrInvalid)
		m.counts.add(op + ": another number")
	case left > 0:
		require.ErrorIs(t, err, sluice.ErrLocked)
		m.counts.add(op + ": locked")
	default:
		require.NoError(t, err)
		m.granted(t, c, lock)
		m.counts.add(op + ": acquired")
	}
	m.end(t)
}

// opens returns when a caller of that number gets a permit, or is told why not.
func (m *permitMachine) opens(number int) time.Time {
	if m.key.Token != 0 || m.permits.Number != number || len(m.permits.Held) < number {
		return m.at
	}
	return time.UnixMilli(m.permits.Held[0].Ends)
}

// lock calls Lock with a context that ends. A permit becomes free when its TTL ends, or not in
// time.
func (m *permitMachine) lock(t *rapid.T) {
	c := m.drawCall(t)
	opens, end := m.opens(c.number), c.before.Add(rapid.SampledFrom(m.waits).Draw(t, "wait"))
	waits := opens.After(c.before)
	if near := opens.Sub(end).Abs(); waits && near < 10*time.Millisecond {
		t.Skip("too close to say")
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	if !m.virtual && !waits {
		cancel() // there is nothing to wait for
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	lock, err := m.lockers[c.locker].Lock(ctx, m.name, c.opts...)
	if opens.After(end) {
		m.awaitReplies(t, m.name)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if m.virtual { // on a real server the reply may arrive after the deadline
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		m.counts.add("lock: locked")
		m.end(t)
		return
	}
	if m.virtual {
		require.Less(t, time.Since(later(opens, c.before)), 3*time.Millisecond, "a permit was free")
	}
	m.elapse()
	if waits {
		m.counts.add("lock: acquired when one ended")
	}
	m.tried(t, "lock", c, m.acquire(c.number, c.ttl), lock, err)
}

func (m *permitMachine) advance(t *rapid.T) {
	m.pass(t)
	m.end(t)
}
