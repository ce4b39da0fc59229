package model_test

import (
	"context"
	"slices"
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
	"github.com/sluice-go/sluice/internal/systest"
)

// setting is what the machines of locks and of permits run on.
type setting struct {
	rdb       redis.UniversalClient
	lockers   [3]*sluice.Locker // each stands for a process
	apart     [3][]*handle      // what each has beside its queues
	counts    *tally
	virtual   bool
	inFlight  *inFlight     // on a real server
	tolerance time.Duration // in which the server's clock and ours are compared
	ttls      []time.Duration
	waits     []time.Duration // how long Lock may wait
}

// inVirtualTime runs a machine in a bubble: time passes as drawn, for the server and its clients.
func inVirtualTime(t *testing.T, wanted string, run func(t *rapid.T, s *setting, name string)) {
	t.Parallel()
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			server := miniredis.NewMiniRedis()
			defer server.Close()
			server.ClockTTL(true)
			rdb := redis.NewClient(&redis.Options{
				Addr:                     "127.0.0.1:6379",
				Dialer:                   systest.BubbleDialer(server),
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			defer func() { _ = rdb.Close() }()
			s := newSetting(rt, rdb, retryInterval, &counts)
			defer s.close()
			s.virtual, s.tolerance = true, time.Millisecond
			s.ttls = []time.Duration{time.Second, 10 * time.Second, time.Hour}
			s.waits = []time.Duration{3 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second, 15 * time.Second}
			run(rt, s, "bubble")
		})
	})
	counts.report(t, list(wanted))
}

// onRealServer runs a machine on a real server. TTLs are long; instead of expiring, keys are
// deleted.
func onRealServer(t *testing.T, wanted string, run func(t *rapid.T, s *setting, name string)) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	commands := &inFlight{}
	rdb.AddHook(commands)
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		// No lock is inspected within such an interval: when that is would be hard to say.
		s := newSetting(rt, rdb, 10*time.Second, &counts)
		defer s.close()
		s.inFlight = commands
		s.tolerance = 20 * time.Second // for a process that was not scheduled
		s.ttls = []time.Duration{time.Hour, 2 * time.Hour}
		s.waits = []time.Duration{3 * time.Millisecond}
		run(rt, s, name)
	})
	counts.report(t, list(wanted))
}

func newSetting(t *rapid.T, rdb redis.UniversalClient, interval time.Duration, counts *tally) *setting {
	s := &setting{rdb: rdb, counts: counts}
	for i := range s.lockers {
		var err error
		s.lockers[i], err = sluice.NewLocker(rdb, sluice.WithRetryInterval(interval))
		require.NoError(t, err)
	}
	return s
}

func (s *setting) close() {
	for _, l := range s.lockers {
		_ = l.Close()
	}
}

// lingers is longer than a process stays in line for its next caller.
const lingers = 20 * time.Millisecond

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

// awaitReplies waits until a real server has answered every command. Lock may return while its last
// attempt is in flight; if that attempt reached the server after the model's next step, it could
// acquire a lock that this step has released. It also waits until the processes of callers that
// have given up have left the lines: a release would reserve a lock for them.
func (s *setting) awaitReplies(t *rapid.T, names ...string) {
	if s.virtual {
		time.Sleep(lingers) // the bubble's clock
		synctest.Wait()
		return
	}
	require.Eventually(t, func() bool { return s.inFlight.Load() == 0 }, time.Minute, 100*time.Microsecond)
	for _, name := range names {
		require.Eventually(t, func() bool {
			info, err := s.lockers[0].Inspect(context.Background(), name)
			require.NoError(t, err)
			return info.Waiting == 0
		}, time.Minute, 100*time.Microsecond, "a process is still in line")
	}
}

// letWait lets the caller that was just started begin to wait.
func (s *setting) letWait() {
	if s.virtual {
		synctest.Wait()
		return
	}
	time.Sleep(500 * time.Microsecond) // usually enough; no result depends on it
}

// pass lets time pass in the bubble.
func (s *setting) pass(t *rapid.T) {
	time.Sleep(rapid.SampledFrom([]time.Duration{ // the bubble's clock
		50 * time.Millisecond, 300 * time.Millisecond, 995 * time.Millisecond, 1050 * time.Millisecond,
		9950 * time.Millisecond, 11 * time.Second, time.Hour - 10*time.Second, 3 * time.Hour,
	}).Draw(t, "by"))
	s.counts.add("advance")
}

func (s *setting) drawLocker(t *rapid.T) int { return rapid.IntRange(0, 2).Draw(t, "locker") }

func (s *setting) drawTTL(t *rapid.T) time.Duration {
	return rapid.SampledFrom(s.ttls).Draw(t, "TTL")
}

func (s *setting) drawOptions(t *rapid.T) (ttl time.Duration, fenced bool, opts []sluice.LockOption) {
	ttl, fenced = s.drawTTL(t), rapid.Bool().Draw(t, "fenced")
	opts = []sluice.LockOption{sluice.WithTTL(ttl)}
	if fenced {
		opts = append(opts, sluice.WithFencing())
	}
	return ttl, fenced, opts
}

// handle is a lock, or a permit, that was acquired.
type handle struct {
	lock     *sluice.Lock
	locker   int
	of       *lockName // of a lock
	permits  int       // of a permit: how many the name has
	token    int
	deadline time.Time
	over     bool // it was given up, or the library has reported it lost
	closed   bool // UnlockAll has released it
	wanted   bool // a caller of its process has waited for it, or has tried: the library may have inspected it
	adopted  bool
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

// same compares what the handle says of itself with the model.
func (h *handle) same(t *rapid.T) {
	require.Equal(t, h.valid(), h.lock.Valid(), "Valid")
	require.Equal(t, h.deadline, h.lock.Deadline(), "Deadline")
	require.Equal(t, h.valid(), h.ctx.Err() == nil, "Context")
}

// safe is for how long a holder may rely on a TTL.
func safe(ttl time.Duration) time.Duration { return max(ttl-ttl/100-2*time.Millisecond, ttl/2) }

// began checks that a deadline is of a command which was sent after before.
func began(t *rapid.T, deadline, before time.Time, ttl time.Duration) {
	sent := deadline.Add(-safe(ttl))
	require.False(t, sent.Before(before) || sent.After(time.Now()), "the deadline")
}

// extended takes the deadline after an extension that was called for at before.
func (h *handle) extended(t *rapid.T, before time.Time, ttl time.Duration, virtual bool) {
	is := h.lock.Deadline()
	if is.Equal(h.deadline) {
		require.False(t, virtual && before.Add(safe(ttl)).After(is), "a deadline that was not moved")
		return
	}
	require.True(t, is.After(h.deadline), "an earlier deadline")
	began(t, is, before, ttl)
	h.deadline = is
}

// sameFence compares the fence of a new handle with the clock and with the last one of its name.
func (s *setting) sameFence(t *rapid.T, lock *sluice.Lock, last *int64, before time.Time, fenced bool) {
	if !fenced {
		require.Zero(t, lock.Fence())
		return
	}
	require.Greater(t, lock.Fence(), *last)
	if s.virtual {
		require.GreaterOrEqual(t, lock.Fence(), before.UnixMicro(), "a fence behind the clock")
	}
	*last = lock.Fence()
}

// setApart notes what a Locker has beside its queues. As that does, it drops what has ended.
func (s *setting) setApart(h *handle) {
	s.apart[h.locker] = append(slices.DeleteFunc(s.apart[h.locker], func(other *handle) bool { return !other.valid() }), h)
}

// needRoom skips an operation after which the model could not say what a Locker has beside its
// queues: of more than four it drops some that have ended; and UnlockAll releases two of one token
// in any order.
func (s *setting) needRoom(t *rapid.T, locker, token int) {
	has := func(h *handle) bool { return h.token == token }
	if all := s.apart[locker]; len(all) > 4 || slices.ContainsFunc(all, has) {
		t.Skip("not known which are dropped, or released first")
	}
}

// leave takes a handle out of what its Locker has beside its queues.
func (s *setting) leave(h *handle) {
	h.over = true
	s.apart[h.locker] = slices.DeleteFunc(s.apart[h.locker], func(other *handle) bool { return other == h })
}
