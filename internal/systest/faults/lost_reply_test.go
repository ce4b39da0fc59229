package faults

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// scriptsRun is how many scripts a real server has run.
func scriptsRun(t *testing.T, rdb redis.UniversalClient) (n int) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+).*failed_calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[1])
		failed, _ := strconv.Atoi(m[2])
		n += calls - failed
	}
	return n
}

// lossy is a server, and a client of it that loses replies.
type lossy struct {
	*testing.T
	rdb, faulty redis.UniversalClient
	faults      *redistest.Faults
}

// called is what came of an operation: what it returned, how many scripts were sent and run for it,
// and what was on the server before and after.
type called struct {
	value         any
	err           error
	sent, ran     int
	before, after map[string]string
}

// call calls an operation on a fixture of its own, with a fault.
func (y lossy) call(op operations.Operation, fault func(int), options []sluice.LockOption) (c called) {
	y.Helper()
	f := operations.New(y.T, y.faulty, options...)
	defer func() { _ = f.Locker.Close() }() // it releases nothing after that
	op.Prepare(y.T, f)
	state := func() map[string]string {
		outline := map[string]string{}
		for key, text := range operations.Outline(operations.State(y.T, y.rdb, f.Name)) {
			outline[strings.Replace(key, f.Name, "name", 1)] = text
		}
		return outline
	}
	require.NoError(y, y.faulty.Ping(y.Context()).Err())
	c.before = state()
	ran, sent := scriptsRun(y.T, y.rdb), y.faults.Scripts()
	fault(1)
	c.value, c.err = op.Call(y.Context(), f)
	c.ran, c.sent = scriptsRun(y.T, y.rdb)-ran, y.faults.Scripts()-sent
	if op.Lost != operations.Unknown {
		y.requireHeld(f, c.value, op.Name)
	}
	c.after = state()
	return c
}

// TestLostReply_OfEveryOperation loses the reply, or the request, of each operation in turn, on
// locks of each kind. What is on the server then is what the operation leaves if all is well, or
// nothing was done and the caller is told ErrUnknown. A script runs as often as its header says
// that it may.
func TestLostReply_OfEveryOperation(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t)
		s.AutoPipeline = auto
		y := lossy{T: t, rdb: s.Client(t)}
		y.faulty, y.faults = s.Faulty(t)
		operations.EachKind(func(kind string, op operations.Operation, options ...sluice.LockOption) {
			if op.Lost == operations.GoesOn || op.Lost == operations.Local {
				return
			}
			well, at := func(int) {}, fmt.Sprintf("%s, autopipeline %v", kind, auto)
			y.call(op, well, options) // so that the server knows the scripts
			usual := y.call(op, well, options)
			require.NoError(t, usual.err, at)
			y.requireLost(op, usual, y.call(op, y.faults.DropReply, options), true, "reply of "+at)
			y.requireLost(op, usual, y.call(op, y.faults.DropRequest, options), false, "request of "+at)
		})
	}
}

// requireLost requires that c, whose request or reply was lost, came out as the table says.
func (y lossy) requireLost(op operations.Operation, usual, c called, reply bool, at string) {
	y.Helper()
	want, attempts, runs := usual.after, usual.sent+1, usual.sent
	if reply {
		runs = attempts
	}
	var err error
	switch op.Lost {
	case operations.Unavailable: // before it has asked for all
		require.ErrorIs(y, c.err, sluice.ErrUnavailable, at)
		require.Equal(y, usual.before, c.after, at)
		return
	case operations.Unknown:
		err, attempts, runs = sluice.ErrUnknown, attempts-1, runs-1
		if !reply {
			want = usual.before
		}
	case operations.UsedUp:
		if reply {
			err = sluice.ErrUnknown
		}
	}
	require.Equal(y, want, c.after, at)
	require.ErrorIs(y, c.err, err, at)
	require.NotErrorIs(y, c.err, sluice.ErrStale, at)
	require.True(y, err != nil || !operations.FoundNothing(c.value), at)
	if op.Lost == operations.Replaced || op.Needs == operations.HeldSet { // beside a release, or in a pipeline of two
		require.GreaterOrEqual(y, c.sent, attempts, "attempts: %s", at)
		return
	}
	require.Equal(y, attempts, c.sent, "attempts: %s", at)
	require.Equal(y, runs, c.ran, "runs: %s", at)
}

// requireHeld requires that a lock which is held, by the caller's word, is so by the server's, and
// for longer.
func (y lossy) requireHeld(f *operations.Fixture, value any, op string) {
	y.Helper()
	k, ok := value.(*sluice.Lock)
	if !ok {
		k = f.Lock
	}
	if k.Valid() {
		left := y.rdb.PTTL(y.Context(), "Lock:"+f.Name).Val() // before the caller's word is taken
		require.Less(y, time.Until(k.Deadline()), left, op)
		require.Contains(y, operations.State(y.T, y.rdb, f.Name)["Lock:"+f.Name], k.Token(), op)
	}
}

// TestLostReply_OfTheFirstTryLeavesNothing: the caller gets the lock all the same, and
// nothing is left of the acquisition that was abandoned.
func TestLostReply_OfTheFirstTryLeavesNothing(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute))
		systest.Warm(t, l, name)
		for _, fault := range []func(int){faults.DropReply, faults.DropRequest, faults.HoldRequest} {
			fault(1)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			faults.Deliver()
			require.Equal(t, k.Token(), rdb.Get(t.Context(), "Lock:"+name).Val())
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			10*time.Second, 5*time.Millisecond, "an acquisition stayed behind")
	})
}

// TestLostReply_KeepsAStaleReceiptStale: a repeat does not make a stale receipt good.
func TestLostReply_KeepsAStaleReceiptStale(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		b := systest.NewQueueTest(t, faulty, redistest.Name(t))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		stale := b.ClaimOne(time.Minute)
		b.EndLeaseSoon(stale)
		require.NoError(t, b.Q.Wait(t.Context()))
		newer := b.ClaimOne(time.Minute)
		for _, op := range operations.OfQueues() {
			if op.Needs != operations.Leased || op.Name == "Queue.List" {
				continue
			}
			want := sluice.ErrStale
			if op.Lost == operations.UsedUp { // by the first, perhaps
				want = sluice.ErrUnknown
			}
			faults.DropReply(1)
			_, err := op.Call(t.Context(), &operations.Fixture{Queue: b.Q, Entry: stale})
			require.ErrorIs(t, err, want, op.Name)
			require.Equal(t, systest.LeasedInfo(newer, time.Minute), b.Get("a"), op.Name)
		}
	})
}
