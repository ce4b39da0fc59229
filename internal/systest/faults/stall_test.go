package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// stall is a time for which a lock with auto-renewal has no server.
type stall struct {
	name   string
	ttl    time.Duration
	after  time.Duration // since the lock was taken
	length time.Duration
	lose   bool // it is so long that the lock must be lost
	keep   bool // it is so short that it must not
	paused bool // it is the server's, so that no client can ask
}

// newStall is long for six of ten, short for two.
func newStall(name string, n int, ttl time.Duration) stall {
	s := stall{name: name, ttl: ttl + rand.N(ttl)}
	s.after = rand.N(3 * s.ttl / 2)
	switch n %= 10; {
	case n < 6:
		s.lose, s.length = true, s.ttl+40*time.Millisecond+rand.N(s.ttl)
	case n < 8:
		s.keep, s.length = true, rand.N(s.ttl/8)
	default:
		s.length = rand.N(s.ttl)
	}
	return s
}

// outcome is what a stall did.
type outcome struct {
	stall
	lost     bool
	deadline time.Time     // the lock's last one
	ended    time.Time     // when Context was seen to have ended
	late     time.Duration // for how long the key had been gone then, not less than 0
	found    bool          // a healthy connection still found our token then
	wrong    string
	early    bool          // it was lost before the stall
	lag      time.Duration // how late the server was for others, at most; it has processes beside it, too
}

// happen has s happen to a lock, by two functions that begin and end it.
func (s stall) happen(ctx context.Context, l *sluice.Locker, healthy redis.UniversalClient, begin, end func()) (out outcome) {
	out.stall = s
	fail := func(format string, args ...any) outcome {
		out.wrong = fmt.Sprintf(format, args...)
		return out
	}
	k, err := l.Lock(ctx, s.name, sluice.WithTTL(s.ttl), sluice.WithAutoRenew())
	if err != nil {
		begin() // others may wait for it
		end()
		return fail("%v", err)
	}
	held, over := k.Context(), make(chan struct{})
	stop := context.AfterFunc(held, func() {
		out.ended, out.deadline = time.Now(), k.Deadline()
		out.found = healthy.Get(ctx, "Lock:"+s.name).Val() == k.Token()
		close(over)
	})
	time.Sleep(s.after) // renewals
	early := !k.Valid()
	begin()
	time.Sleep(s.length) // the stall
	valid := k.Valid()
	end()
	if early {
		<-over
		out.early = true
		return fail("lost before the stall")
	}
	if !s.lose {
		time.Sleep(s.ttl + s.ttl/2) // is it kept?
		valid = k.Valid()
	}
	if valid && stop() {
		if s.lose {
			return fail("not lost")
		}
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := k.Unlock(bounded); err != nil && !errors.Is(err, sluice.ErrUnknown) { // as on a dead connection
			return fail("kept, but %v", err)
		}
		return out
	}
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		return fail("not valid, but Context has not ended")
	}
	out.lost = true
	time.Sleep(50 * time.Millisecond) // answers that come late
	switch {
	case s.keep:
		return fail("lost")
	case !errors.Is(context.Cause(held), sluice.ErrLost):
		return fail("the cause is %v", context.Cause(held))
	case k.Valid():
		return fail("held again after it was lost")
	}
	return out
}

// TestLock_StallsNeverOutliveTheKey stalls the connection of locks with auto-renewal, and
// of some the whole server: at a random moment, for a random time. A lock that is lost must
// be so before its key is gone, by the server's own log and clock. A lock that has lost
// touch for a moment only, or just its connection, must be kept.
func TestLock_StallsNeverOutliveTheKey(t *testing.T) {
	t.Parallel()
	lag, s := systest.Lag(t), &stalls{together: 8, ttl: 400 * time.Millisecond}
	t.Run("rounds", func(t *testing.T) {
		for round := range 2 {
			t.Run(fmt.Sprint(round), func(t *testing.T) {
				t.Parallel()
				s.run(t, round)
			})
		}
	})
	s.check(t, lag)
}

// stalls is many of them.
type stalls struct {
	together int           // at a time
	ttl      time.Duration // of the locks at the least; twice that at the most

	mu  sync.Mutex
	all []outcome
}

// run stalls some locks at the same time. In one round of three it is the server that
// stalls.
func (all *stalls) run(t *testing.T, round int) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	out := make([]outcome, all.together)
	var running sync.WaitGroup
	healthy := s.Client(t)
	paused := newStall("the server's", 2*(round/3), all.ttl)
	var begun, ended sync.WaitGroup // of the server's stall
	stopped := make(chan struct{})  // the server is
	if round%3 == 1 {
		begun.Add(len(out))
		ended.Add(len(out))
	}
	for i := range out {
		name := fmt.Sprintf("%s.%d", redistest.Name(t), i)
		rdb, faults := s.Faulty(t)
		l := systest.NewLocker(t, rdb)
		systest.Warm(t, l, name)
		st, begin, end := newStall(name, i, all.ttl), func() {}, faults.Resume
		if round%3 == 1 {
			st.lose, st.keep, st.length = paused.lose, paused.keep, paused.length
			st.ttl, st.paused = paused.ttl, true
			begin, end = func() { begun.Done(); <-stopped }, func() { ended.Done(); ended.Wait() }
			if i == 0 {
				begin = func() { begun.Done(); begun.Wait(); s.Pause(t); close(stopped) }
				end = func() { s.Resume(t); ended.Done(); ended.Wait() }
			}
		} else if i%5 == 4 {
			begin, st.lose, st.keep = faults.Cut, false, true // the next connection is all right
			st.after = st.ttl/2 + rand.N(st.ttl)              // that of the renewals, which go-redis keeps apart, is among them
		} else {
			begin = []func(){
				faults.Stall, faults.StallRequests, func() { faults.Stall(); faults.StallRequests() },
			}[rand.IntN(3)]
		}
		running.Go(func() {
			out[i] = st.happen(t.Context(), l, healthy, begin, end)
			_ = l.Close() // waits for what a dead connection has, up to a second
		})
	}
	served := func() time.Duration { return 0 }
	if round%3 != 1 {
		served = serverLag(t, healthy)
	}
	running.Wait()
	out = judge(t, s, out)
	for i := range out {
		out[i].lag = served()
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.all = append(all.all, out...)
}

// serverLag watches how long a server takes to answer, until the function that it returns is
// called, which returns the longest time.
func serverLag(t *testing.T, rdb redis.UniversalClient) func() time.Duration {
	ctx, stop := context.WithCancel(t.Context())
	var longest time.Duration
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			sent := time.Now()
			_ = rdb.Ping(ctx).Err()
			longest = max(longest, time.Since(sent))
			time.Sleep(5 * time.Millisecond) // as Lag does
		}
	})
	return func() time.Duration {
		stop()
		watching.Wait()
		return longest
	}
}

// check requires that all was as it should be.
func (all *stalls) check(t *testing.T, lag func() time.Duration) {
	t.Helper()
	lost, kept, found, seen := 0, 0, 0, 0
	excused, late := 0, 0
	for _, o := range all.all {
		if (o.early || o.keep && o.lost) && max(lag(), o.lag) > o.ttl/8 {
			excused++ // a machine that is so late loses a lock without a stall, or by a short one
			continue
		}
		require.Empty(t, o.wrong, "%+v, lag %v", o.stall, lag())
		if o.late > lag() {
			late++
		}
		if o.lost {
			lost++
			if !o.paused {
				seen++
			}
		} else {
			kept++
		}
		if o.found && !o.paused {
			found++
		}
	}
	n := len(all.all) - excused
	t.Logf("%d stalls: %d kept, %d lost; of %d of these a healthy connection could tell, and found %d; lag %v", n, kept, lost, seen, found, lag())
	require.GreaterOrEqual(t, lost, n*2/5, "most stalls were too short")
	require.GreaterOrEqual(t, kept+excused, n/10, "most stalls were too long")
	require.LessOrEqual(t, late, 1+lost/20, "Contexts were seen to end after their keys")
	if lag() < 5*time.Millisecond { // the question itself takes time, and the key lives for about 15ms more
		require.GreaterOrEqual(t, found, seen*9/10)
	}
}

// judge compares the deadlines, after which a lock is not Valid, with the ends of the keys.
// When a Context was seen to have ended is another matter: a busy machine may let the
// goroutine that sees it run late, and check bounds how many do, by more than that machine
// was seen to.
func judge(t *testing.T, s *redistest.Server, out []outcome) []outcome {
	gone := expiries(t, s)
	for i, o := range out {
		if !o.lost || o.wrong != "" {
			continue
		}
		end := gone["Lock:"+o.name]
		out[i].late = max(o.ended.Sub(end)+1, 0) // 1ns if it was the very moment
		if !o.deadline.Before(end) {
			out[i].wrong = fmt.Sprintf("the deadline was %v after the key's end", o.deadline.Sub(end))
		}
	}
	return out
}

// expiries is until when each key lives, by a server's log.
func expiries(t *testing.T, s *redistest.Server) map[string]time.Time {
	t.Helper()
	until := map[string]time.Time{}
	for _, command := range s.Log(t) {
		switch command[0] {
		case "SET", "PEXPIREAT":
			at := 2
			if command[0] == "SET" {
				at = slices.Index(command, "PXAT") + 1
			}
			ms, err := strconv.ParseInt(command[at], 10, 64)
			require.NoError(t, err, command)
			until[command[1]] = time.UnixMilli(ms)
		}
	}
	return until
}
