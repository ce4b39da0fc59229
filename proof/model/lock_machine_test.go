package model_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/proof/model"
)

// lockResults are what a run has to have seen, besides those of virtualResults.
const lockResults = `extend: done; extend: not held; force unlock: held; force unlock: not held; foreign key; key lost;
context ended; inspect: held; inspect: not held; inspect: without TTL; lock: ended; lock: locked; lock: taken; passed on by hand;
passed on by the server; try lock: locked; try lock: taken; try lock: taken, fenced; ttl: held; ttl: not held; unlock: done;
unlock: not held; unlock all; foreign key given a TTL`

// virtualResults are those that need time to pass.
const virtualResults = `; advance; lock: taken after its holder's TTL; unlock: done after the deadline; extend: after the deadline`

// TestLockMachineVirtual does it in a bubble, where time passes as drawn for the
// server and its clients, and deadlines are compared to the nanosecond.
func TestLockMachineVirtual(t *testing.T) {
	t.Parallel()
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			server := miniredis.NewMiniRedis()
			defer server.Close()
			server.ClockTTL(true)
			rdb := redis.NewClient(&redis.Options{
				Addr:                     "127.0.0.1:6379",
				Dialer:                   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			defer func() { _ = rdb.Close() }()
			m := newLockMachine(rt, rdb, "bubble", &counts)
			defer m.close()
			m.virtual, m.tolerance = true, time.Millisecond
			m.ttls = []time.Duration{time.Second, 10 * time.Second, time.Hour}
			m.patience = []time.Duration{3 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second, 15 * time.Second}
			actions := m.actions()
			actions["Advance"] = m.advance
			rt.Repeat(actions)
		})
	})
	counts.report(t, list(lockResults+virtualResults))
}

// TestLockMachineReal does it on a real server. TTLs are long, and keys are lost by
// hand.
func TestLockMachineReal(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	under := &underWay{}
	rdb.AddHook(under)
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		m := newLockMachine(rt, rdb, name, &counts)
		defer m.close()
		m.underWay = under
		m.tolerance = 20 * time.Second // for a process that was not scheduled
		m.ttls = []time.Duration{time.Hour, 2 * time.Hour}
		m.patience = []time.Duration{3 * time.Millisecond}
		rt.Repeat(m.actions())
	})
	counts.report(t, list(lockResults))
}

// underWay counts the commands that a client has sent and the server has not answered.
type underWay struct{ atomic.Int64 }

func (u *underWay) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u *underWay) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *underWay) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		u.Add(1)
		defer u.Add(-1)
		return next(ctx, cmd)
	}
}

func list(results string) (out []string) {
	for what := range strings.SplitSeq(results, ";") {
		out = append(out, strings.TrimSpace(what))
	}
	return out
}

const (
	retryInterval = 200 * time.Millisecond
	keySlack      = 12 * time.Millisecond // for which a key lives longer than its TTL
	foreign       = -1                    // the token of another library's client
)

// lockMachine makes an operation on locks and on the model, and compares.
type lockMachine struct {
	rdb       redis.UniversalClient
	lockers   [3]*sluice.Locker // as many processes
	names     [2]*lockName
	handles   []*handle // all that there ever were
	counts    *tally
	virtual   bool
	underWay  *underWay     // of a real server
	tolerance time.Duration // in which the server's clock and ours are compared
	ttls      []time.Duration
	patience  []time.Duration // of Lock
	at        time.Time       // until which the model has come
}

// lockName is a name, what the server has of it and what each process knows of it.
type lockName struct {
	name    string
	key     model.Key
	holders [3]*handle // who has the lock, as far as a process knows
	fence   int64      // the highest so far
	tokens  map[int]string
}

// handle is a lock that somebody was given.
type handle struct {
	lock     *sluice.Lock
	locker   int
	of       *lockName
	token    int
	deadline time.Time
	over     bool // it was unlocked, or said to be lost
	ctx      context.Context
}

func (h *handle) valid() bool { return !h.over && time.Now().Before(h.deadline) }

func newLockMachine(t *rapid.T, rdb redis.UniversalClient, name string, counts *tally) *lockMachine {
	m := &lockMachine{rdb: rdb, counts: counts, at: time.Now()}
	for i := range m.lockers {
		var err error
		m.lockers[i], err = sluice.NewLocker(rdb, sluice.WithRetryInterval(retryInterval))
		require.NoError(t, err)
	}
	for i, suffix := range []string{".a", ".b"} {
		m.names[i] = &lockName{name: name + suffix, tokens: map[int]string{foreign: "php"}}
		require.NoError(t, rdb.Del(context.Background(), "Lock:"+name+suffix).Err())
	}
	return m
}

func (m *lockMachine) close() {
	for _, l := range m.lockers {
		_ = l.Close()
	}
}

func (m *lockMachine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"TryLock": m.tryLock, "TryLock2": m.tryLock, "Lock": m.lock, "LockEnded": m.lockEnded, "HandOff": m.handOff,
		"Unlock": m.unlock, "Extend": m.extend, "TTL": m.ttl, "Inspect": m.inspect,
		"ForceUnlock": m.forceUnlock, "UnlockAll": m.unlockAll, "Foreign": m.foreign, "Lose": m.lose,
	}
}

// elapse brings the model to the present.
func (m *lockMachine) elapse() {
	now := time.Now()
	for _, n := range m.names {
		n.key.Elapse(int64(now.Sub(m.at)))
	}
	m.at = now
}

// end compares the keys and every handle with the model.
func (m *lockMachine) end(t *rapid.T) {
	if m.virtual {
		synctest.Wait() // alarms
	}
	m.elapse()
	for _, n := range m.names {
		ctx := context.Background()
		token, err := m.rdb.Get(ctx, "Lock:"+n.name).Result()
		if n.key.Token == 0 {
			require.ErrorIs(t, err, redis.Nil, "a key that should not be there")
			continue
		}
		require.NoError(t, err, "no key")
		require.Equal(t, n.tokens[n.key.Token], token)
		m.sameTTL(t, n.key.Left, m.rdb.PTTL(ctx, "Lock:"+n.name).Val())
	}
	for _, h := range m.handles {
		require.Equal(t, h.valid(), h.lock.Valid(), "Valid")
		require.Equal(t, h.deadline, h.lock.Deadline(), "Deadline")
		require.Equal(t, h.valid(), h.ctx.Err() == nil, "Context")
	}
}

func (m *lockMachine) sameTTL(t *rapid.T, want int64, is time.Duration) {
	if want == model.Forever {
		require.Negative(t, is)
		return
	}
	require.InDelta(t, want, is, float64(m.tolerance))
}

func (m *lockMachine) drawName(t *rapid.T) *lockName {
	return m.names[rapid.IntRange(0, 1).Draw(t, "name")]
}

func (m *lockMachine) drawLocker(t *rapid.T) int { return rapid.IntRange(0, 2).Draw(t, "locker") }

// drawHandle draws a late one, mostly.
func (m *lockMachine) drawHandle(t *rapid.T) *handle {
	if len(m.handles) == 0 {
		t.Skip("no handle yet")
	}
	return m.handles[len(m.handles)-1-rapid.IntRange(0, min(len(m.handles), 5)-1).Draw(t, "handle")]
}

func (m *lockMachine) drawTTL(t *rapid.T) time.Duration {
	return rapid.SampledFrom(m.ttls).Draw(t, "TTL")
}

func (m *lockMachine) drawOptions(t *rapid.T) (ttl time.Duration, fenced bool, opts []sluice.LockOption) {
	ttl, fenced = m.drawTTL(t), rapid.Bool().Draw(t, "fenced")
	opts = []sluice.LockOption{sluice.WithTTL(ttl)}
	if fenced {
		opts = append(opts, sluice.WithFencing())
	}
	return ttl, fenced, opts
}

// holder is who has the lock as far as the process knows, if not for too long.
func (m *lockMachine) holder(n *lockName, locker int) *handle {
	if h := n.holders[locker]; h != nil && h.valid() {
		return h
	}
	return nil
}

// look is an acquisition as the server sees it. It says whether the lock was free.
func (m *lockMachine) look(n *lockName, ttl time.Duration) bool {
	if n.key.Left == model.Forever {
		m.counts.add("foreign key given a TTL")
	}
	return n.key.Acquire(len(m.handles)+1, int64(ttl+keySlack)) == 0
}

// granted checks a lock that was just taken.
func (m *lockMachine) granted(t *rapid.T, n *lockName, locker int, lock *sluice.Lock, before time.Time, ttl time.Duration, fenced bool) {
	h := &handle{lock: lock, locker: locker, of: n, token: len(m.handles) + 1, deadline: lock.Deadline(), ctx: lock.Context()}
	m.handles = append(m.handles, h)
	n.holders[locker], n.tokens[h.token] = h, lock.Token()
	require.Equal(t, h.token, n.key.Token, "the lock was not free")
	sent := h.deadline.Add(-max(ttl-ttl/100-2*time.Millisecond, ttl/2))
	require.False(t, sent.Before(before) || sent.After(time.Now()), "the deadline")
	require.Equal(t, n.name, lock.Name())
	if !fenced {
		require.Zero(t, lock.Fence())
		return
	}
	require.Greater(t, lock.Fence(), n.fence)
	if m.virtual {
		require.GreaterOrEqual(t, lock.Fence(), before.UnixMicro(), "a fence behind the clock")
	}
	n.fence = lock.Fence()
}

func (m *lockMachine) tryLock(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	m.elapse()
	free := m.holder(n, locker) == nil
	if free {
		n.holders[locker] = nil
		free = m.look(n, ttl)
	}
	before := time.Now()
	lock, err := m.lockers[locker].TryLock(context.Background(), n.name, opts...)
	if free {
		require.NoError(t, err)
		m.granted(t, n, locker, lock, before, ttl, fenced)
		m.counts.add("try lock: taken" + either(fenced, ", fenced", ""))
	} else {
		require.ErrorIs(t, err, sluice.ErrLocked)
		m.counts.add("try lock: locked")
	}
	m.end(t)
}

// lock waits, for a context that ends. What it waits for is the end of a TTL.
func (m *lockMachine) lock(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	patience := rapid.SampledFrom(m.patience).Draw(t, "patience")
	m.elapse()
	before, turn := m.at, m.at
	if h := m.holder(n, locker); h != nil {
		turn = h.deadline // the one in front holds it until then, and nobody asks
	}
	expires := m.expires(n, turn, ttl)
	if expires.After(before.Add(patience)) {
		patience = min(patience, 2*time.Second) // in vain; it looks often enough in that time
	}
	end := before.Add(patience)
	if near := expires.Sub(end); expires.After(before) && near > -3*retryInterval && near < retryInterval {
		t.Skip("too close to say")
	}
	if n.key.Left == model.Forever && !m.virtual {
		t.Skip("it may not come to ask")
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	if !m.virtual && !expires.After(before) {
		cancel() // it is free: there is nothing to wait for
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	lock, err := m.lockers[locker].Lock(ctx, n.name, opts...)
	if expires.After(end) {
		m.rest(t)
		m.stayedLocked(t, n, turn, end, ttl, locker)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if m.virtual { // else it may not have been told in time
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		m.counts.add("lock: locked")
		m.end(t)
		return
	}
	require.NoError(t, err)
	n.holders[locker] = nil
	if m.virtual {
		require.LessOrEqual(t, time.Until(expires), time.Duration(0), "before the key had expired")
		require.Less(t, time.Since(later(expires, before)), 2*retryInterval)
	}
	m.elapse()
	if n.key.Left == model.Forever {
		m.look(n, ttl) // it was given a TTL, which has run out
		n.key = model.Key{}
	}
	m.look(n, ttl)
	m.granted(t, n, locker, lock, before, ttl, fenced)
	m.counts.add("lock: taken" + either(expires.After(before), " after its holder's TTL", ""))
	m.end(t)
}

// rest waits until a real server has answered everything. Lock may return while its
// last attempt is under way; if that attempt reached the server after the model's next
// step, it could take a lock that this step has freed.
func (m *lockMachine) rest(t *rapid.T) {
	if !m.virtual {
		require.Eventually(t, func() bool { return m.underWay.Load() == 0 }, time.Minute, 100*time.Microsecond)
	}
}

// expires is when the key of a lock expires for who looks at it from turn on.
func (m *lockMachine) expires(n *lockName, turn time.Time, ttl time.Duration) time.Time {
	left := time.Duration(n.key.Left)
	switch {
	case n.key.Token == 0:
		return turn
	case n.key.Left == model.Forever:
		return turn.Add(ttl + keySlack)
	}
	return later(turn, m.at.Add(left))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stayedLocked brings the model to the end of a Lock that was in vain.
func (m *lockMachine) stayedLocked(t *rapid.T, n *lockName, turn, end time.Time, ttl time.Duration, locker int) {
	if m.virtual {
		require.Equal(t, end, time.Now(), "when it came back")
	}
	if !turn.Before(end) {
		return
	}
	n.holders[locker] = nil
	if n.key.Left == model.Forever {
		require.False(t, m.look(n, ttl))
		n.key.Left += int64(turn.Sub(m.at))
	}
}

// lockEnded: with a context that has ended, nothing is sent.
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
		// A busy machine did not answer within the 15ms that Unlock waits with such a
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
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		m.counts.add("unlock: not held")
	}
	m.over(h)
	m.end(t)
}

// over ends a handle.
func (m *lockMachine) over(h *handle) {
	h.over = true
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
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		m.counts.add("extend: " + either(h.over, "not held", "after the deadline"))
	case !h.of.key.Extend(h.token, int64(ttl+keySlack)):
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorIs(t, context.Cause(h.ctx), sluice.ErrLost)
		m.over(h)
		m.counts.add("extend: not held")
	default:
		require.NoError(t, err)
		if is := h.lock.Deadline(); !is.Equal(h.deadline) {
			require.True(t, is.After(h.deadline), "an earlier deadline")
			sent := is.Add(-max(ttl-ttl/100-2*time.Millisecond, ttl/2))
			require.False(t, sent.Before(before) || sent.After(time.Now()), "the deadline")
			h.deadline = is
		} else if m.virtual {
			require.False(t, before.Add(ttl-ttl/100-2*time.Millisecond).After(is), "a deadline that was not moved")
		}
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
		require.ErrorIs(t, err, sluice.ErrNotHeld)
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
	if info.Held {
		m.sameTTL(t, n.key.Left, info.TTL)
	}
	m.counts.add("inspect: " + either(n.key.Left == model.Forever, "without TTL", either(info.Held, "held", "not held")))
	m.end(t)
}

func (m *lockMachine) forceUnlock(t *rapid.T) {
	n := m.drawName(t)
	m.elapse()
	want := n.key.Force()
	held, err := m.lockers[m.drawLocker(t)].ForceUnlock(context.Background(), n.name)
	require.NoError(t, err)
	require.Equal(t, want, held)
	m.counts.add("force unlock: " + either(held, "held", "not held"))
	m.end(t)
}

func (m *lockMachine) unlockAll(t *rapid.T) {
	locker := m.drawLocker(t)
	m.elapse()
	require.NoError(t, m.lockers[locker].UnlockAll(context.Background()))
	for _, n := range m.names {
		if h := n.holders[locker]; h != nil {
			n.key.Release(h.token)
			m.over(h)
		}
	}
	m.counts.add("unlock all")
	m.end(t)
}

// foreign is a client of another library, which sets a key with or without TTL.
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

// lose has a key removed by hand: evicted, expired too early, lost in a failover.
func (m *lockMachine) lose(t *rapid.T) {
	n := m.drawName(t)
	require.NoError(t, m.rdb.Del(context.Background(), "Lock:"+n.name).Err())
	n.key = model.Key{}
	m.counts.add("key lost")
	m.end(t)
}

func (m *lockMachine) advance(t *rapid.T) {
	time.Sleep(rapid.SampledFrom([]time.Duration{ // the bubble's clock
		50 * time.Millisecond, 300 * time.Millisecond, 995 * time.Millisecond, 1050 * time.Millisecond,
		9950 * time.Millisecond, 11 * time.Second, time.Hour - 10*time.Second, 3 * time.Hour,
	}).Draw(t, "by"))
	m.counts.add("advance")
	m.end(t)
}

// handOff lets several callers wait for a lock that is held, and unlocks it: each of
// them gets it, one after the other, those of one process in the order in which
// they came.
func (m *lockMachine) handOff(t *rapid.T) {
	n, locker := m.drawName(t), m.drawLocker(t)
	ttl, fenced, opts := m.drawOptions(t)
	crowd := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 4).Draw(t, "lockers")
	m.elapse()
	if n.key.Token != 0 {
		t.Skip("it is held")
	}
	for i := range n.holders {
		n.holders[i] = nil // who believes to hold it has lost it
	}
	for _, h := range m.handles { // out of the line, or they would be in its way
		if h.of == n && !h.over {
			require.ErrorIs(t, h.lock.Unlock(context.Background()), sluice.ErrNotHeld)
			h.over = true
		}
	}
	w := &handOff{machine: m, name: n, fenced: fenced, came: make([][]int, len(m.lockers)), got: make([][]int, len(m.lockers))}
	first, err := m.lockers[locker].Lock(context.Background(), n.name, opts...)
	require.NoError(t, err)
	w.enter(first, locker, -1)
	var all sync.WaitGroup
	for i, locker := range crowd {
		w.came[locker] = append(w.came[locker], i)
		all.Go(func() { w.take(i, locker, opts) })
		m.settle()
	}
	w.leave(first)
	all.Wait()
	require.Empty(t, w.wrong)
	require.Equal(t, len(crowd)+1, w.grants)
	if m.virtual {
		require.Equal(t, w.came, w.got, "the order in a process")
		require.Less(t, time.Since(m.at), ttl, "somebody had to wait for a TTL")
	}
	m.end(t)
}

// settle lets what was started come to rest.
func (m *lockMachine) settle() {
	if m.virtual {
		synctest.Wait()
		return
	}
	time.Sleep(500 * time.Microsecond) // it waits now, as a rule; nothing depends on it
}

// handOff is a lock on its way through many hands.
type handOff struct {
	machine *lockMachine
	name    *lockName
	fenced  bool

	mu        sync.Mutex // guards what follows
	came, got [][]int
	grants    int
	inside    int
	token     string
	old       *sluice.Lock
	wrong     []string
}

func (w *handOff) take(i, locker int, opts []sluice.LockOption) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lock, err := w.machine.lockers[locker].Lock(ctx, w.name.name, opts...)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong = append(w.wrong, err.Error())
		return
	}
	w.enter(lock, locker, i)
	w.leave(lock)
}

// enter is called by who has just been given the lock.
func (w *handOff) enter(lock *sluice.Lock, locker, i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	check := func(ok bool, wrong string) {
		if !ok {
			w.wrong = append(w.wrong, wrong)
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
		w.machine.counts.add("passed on by " + either(lock.Token() == w.token, "hand", "the server"))
	}
	w.old, w.token = lock, lock.Token()
}

func (w *handOff) leave(lock *sluice.Lock) {
	w.mu.Lock()
	w.inside--
	w.mu.Unlock()
	if err := lock.Unlock(context.Background()); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong = append(w.wrong, err.Error())
	}
}
