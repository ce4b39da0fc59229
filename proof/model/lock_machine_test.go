package model_test

import (
	"context"
	"net"
	"strings"
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

// lockResults are the results that a long run must have seen.
const lockResults = `extend: done; extend: not held; force unlock: held; force unlock: not held; force unlock: the locker's own; foreign key; key lost;
context ended; inspect: held; inspect: not held; inspect: without TTL; lock: ended; lock: locked; lock: max wait; lock: acquired; handed over;
released to the next; try lock: locked; try lock: acquired; try lock: acquired, fenced; ttl: held; ttl: not held; unlock: done;
unlock: not held; unlock: closed; unlock all; foreign key given a TTL`

// virtualResults are those that need time to pass, besides lockResults.
const virtualResults = `; advance; inspected; lock: acquired after its holder's TTL; unlock: done after the deadline; extend: after the deadline`

// TestLockMachine_VirtualTime runs the machine in a bubble: time passes as drawn, for the
// server and its clients, and deadlines are compared to the nanosecond.
func TestLockMachine_VirtualTime(t *testing.T) {
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
			m := newLockMachine(rt, rdb, "bubble", retryInterval, &counts)
			defer m.close()
			m.virtual, m.tolerance = true, time.Millisecond
			m.ttls = []time.Duration{time.Second, 10 * time.Second, time.Hour}
			m.waits = []time.Duration{3 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second, 15 * time.Second}
			actions := m.actions()
			actions["Advance"] = m.advance
			rt.Repeat(actions)
		})
	})
	counts.report(t, list(lockResults+virtualResults))
}

// TestLockMachine_RealServer runs the machine on a real server. TTLs are long; instead of
// expiring, keys are deleted.
func TestLockMachine_RealServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	commands := &inFlight{}
	rdb.AddHook(commands)
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		// No lock is inspected within such an interval: when that is would be hard to say.
		m := newLockMachine(rt, rdb, name, 10*time.Second, &counts)
		defer m.close()
		m.inFlight = commands
		m.tolerance = 20 * time.Second // for a process that was not scheduled
		m.ttls = []time.Duration{time.Hour, 2 * time.Hour}
		m.waits = []time.Duration{3 * time.Millisecond}
		rt.Repeat(m.actions())
	})
	counts.report(t, list(lockResults))
}

// inFlight counts the commands that a client has sent and that the server has not answered.
type inFlight struct{ atomic.Int64 }

func (u *inFlight) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u *inFlight) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *inFlight) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		u.Add(1)
		defer u.Add(-1)
		return next(ctx, cmd)
	}
}

// list splits a list at its semicolons.
func list(results string) (out []string) {
	for what := range strings.SplitSeq(results, ";") {
		out = append(out, strings.TrimSpace(what))
	}
	return out
}

const (
	retryInterval = 200 * time.Millisecond
	keyMargin     = 12 * time.Millisecond // how much longer than its TTL a key lives
	foreign       = -1                    // the token of another library's client
)

// lockMachine performs an operation on locks and on the model, and compares the results.
type lockMachine struct {
	rdb       redis.UniversalClient
	lockers   [3]*sluice.Locker // each stands for a process
	names     [2]*lockName
	handles   []*handle // all so far
	counts    *tally
	virtual   bool
	inFlight  *inFlight     // on a real server
	tolerance time.Duration // in which the server's clock and ours are compared
	ttls      []time.Duration
	waits     []time.Duration // how long Lock may wait
	at        time.Time       // the time of the model
}

// lockName is a name, with what the server holds and what each process knows of it.
type lockName struct {
	name    string
	key     model.Key
	holders [3]*handle // the holder that each process knows of
	fence   int64      // the highest so far
	tokens  map[int]string
}

// handle is a lock that was acquired.
type handle struct {
	lock     *sluice.Lock
	locker   int
	of       *lockName
	token    int
	deadline time.Time
	over     bool // it was unlocked, or the library has reported it lost
	closed   bool // UnlockAll has released it
	wanted   bool // a caller of its process has waited for it, or has tried: the library may have inspected it
	ctx      context.Context
}

// gone is the error of an operation on a lock that is not held any more.
func (h *handle) gone() error {
	if h.closed {
		return sluice.ErrClosed
	}
	return sluice.ErrNotHeld
}

func (h *handle) valid() bool { return !h.over && time.Now().Before(h.deadline) }

func newLockMachine(t *rapid.T, rdb redis.UniversalClient, name string, interval time.Duration, counts *tally) *lockMachine {
	m := &lockMachine{rdb: rdb, counts: counts, at: time.Now()}
	for i := range m.lockers {
		var err error
		m.lockers[i], err = sluice.NewLocker(rdb, sluice.WithRetryInterval(interval))
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
		"TryLock": m.tryLock, "TryLock2": m.tryLock, "Lock": m.lock, "LockEnded": m.lockEnded, "HandOver": m.handOver,
		"Unlock": m.unlock, "Extend": m.extend, "TTL": m.ttl, "Inspect": m.inspect,
		"ForceUnlock": m.forceUnlock, "UnlockAll": m.unlockAll, "Foreign": m.foreign, "Lose": m.lose,
	}
}

// elapse lets the time of the model pass until now.
func (m *lockMachine) elapse() {
	now := time.Now()
	for _, n := range m.names {
		n.key.Elapse(int64(now.Sub(m.at)))
	}
	m.at = now
	m.learn()
}

// learn notes which holders have learnt that they lost their locks, by an inspection.
func (m *lockMachine) learn() {
	if m.virtual {
		synctest.Wait()
	}
	for _, h := range m.handles {
		if h.wanted && h.valid() && h.of.key.Token != h.token && !h.lock.Valid() {
			m.over(h)
			m.counts.add("inspected")
		}
	}
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

// drawHandle draws one of the last handles.
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

// holder returns the handle that the process knows as the holder, if it is valid.
func (m *lockMachine) holder(n *lockName, locker int) *handle {
	if h := n.holders[locker]; h != nil && h.valid() {
		return h
	}
	return nil
}
