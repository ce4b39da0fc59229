package distributed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// wakeLateness has a child wait for a lock that is held, releases it when the child has had
// time to subscribe, and returns how late the child got it in each round, sorted.
func wakeLateness(t *testing.T, s *redistest.Server, rdb redis.UniversalClient, retry time.Duration, rounds int) (late []time.Duration) {
	t.Helper()
	l, c := systest.NewLocker(t, rdb), systest.StartChild(t, "waiter", s.Addr, 15*time.Second, retry)
	for i := range rounds {
		name := fmt.Sprintf("%s.%d", redistest.Name(t), i)
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		c.Tell(name)
		// Long enough to be waiting, and not always equally far into an interval.
		time.Sleep(60*time.Millisecond + rand.N(60*time.Millisecond))
		released := time.Now()
		require.NoError(t, k.Unlock(t.Context()))
		late = append(late, took(c).Sub(released))
	}
	slices.Sort(late)
	t.Logf("%d rounds: p50 %v, p99 %v, max %v", rounds, late[rounds/2], late[rounds*99/100], late[rounds-1])
	return late
}

// TestLocker_WakesWaitersAcrossProcesses: a notification wakes the waiter. It would poll
// after half a minute at the earliest.
func TestLocker_WakesWaitersAcrossProcesses(t *testing.T) {
	// Not parallel: it measures.
	s, lag := redistest.Redis(t), systest.Lag(t)
	late := wakeLateness(t, s, s.Client(t), time.Minute, 20)
	// Half of them need no longer than three goroutines, in two processes and the
	// server, need to get a processor each.
	require.LessOrEqual(t, late[len(late)/2], 2*time.Millisecond+3*lag())
	require.Less(t, late[len(late)-1], time.Second+10*lag())
}

// TestLocker_PollsWherePublishIsDenied: unlocking works, and waiters find out by polling.
func TestLocker_PollsWherePublishIsDenied(t *testing.T) {
	t.Parallel()
	const retry = 100 * time.Millisecond
	for name, deny := range map[string]func(*testing.T) *redistest.Server{
		"renamed": func(t *testing.T) *redistest.Server {
			return redistest.Start(t, "--rename-command", "PUBLISH", "")
		},
		"acl": func(t *testing.T) *redistest.Server {
			s := redistest.Start(t)
			require.NoError(t, s.Client(t).ACLSetUser(t.Context(), "default", "-publish").Err())
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := deny(t)
			rdb := s.Client(t)
			require.Error(t, rdb.Publish(t.Context(), "a", "b").Err())
			lag := systest.Lag(t)
			late := wakeLateness(t, s, rdb, retry, 20)
			require.LessOrEqual(t, late[len(late)/2], retry+50*time.Millisecond+20*lag()) // and the way there
			require.Less(t, late[len(late)-1], 10*time.Second)
			q := systest.NewQueue(t, rdb)
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
		})
	}
}

// TestLocker_TakesOverFromAKilledHolder: a waiter gets the lock of a holder that was killed
// by SIGKILL when the TTL and a retry interval are over, at the latest.
func TestLocker_TakesOverFromAKilledHolder(t *testing.T) {
	t.Parallel()
	const ttl, retry = 700 * time.Millisecond, 100 * time.Millisecond
	s := redistest.Redis(t)
	lag, l := systest.LagOf(t, s.Client(t)), systest.NewLocker(t, s.Client(t))
	for range 3 {
		name, c := redistest.Name(t), systest.StartChild(t, "waiter", s.Addr, ttl, retry)
		c.Tell("keep " + name)
		taken := took(c)
		require.NoError(t, c.Process.Kill())
		k, err := l.Lock(t.Context(), name, sluice.WithRetryInterval(retry))
		require.NoError(t, err)
		late := time.Since(taken.Add(ttl))
		t.Logf("free %v after the end of the TTL", late)
		require.Less(t, late, retry+50*time.Millisecond+10*lag())
		require.NoError(t, k.Unlock(t.Context()))
	}
}

// fenced writes to a register that refuses a writer whose fence is lower than that
// of one before. KEYS[1] a hash; ARGV[1] fence, ARGV[2] value; RETURNS 1 written,
// 0 refused.
var fenced = redis.NewScript(`
if tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1`)

var _ = systest.Role("holder", hold)

// hold is the role "holder". Its settings are "ADDR NAME TTL": it takes the lock with
// auto-renewal and prints its fence. For each line of its standard input it prints
// whether the lock is valid; whether Context ended with ErrLost, if the lock is not;
// whether a write with its fence was accepted; and whether Unlock returned ErrNotHeld,
// if the lock is not valid.
func hold(settings string) {
	var addr, name string
	var ttl time.Duration
	if _, err := fmt.Sscan(settings, &addr, &name, (*systest.Duration)(&ttl)); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	l, err := sluice.NewLocker(rdb, sluice.WithFencing(), sluice.WithTTL(ttl), sluice.WithAutoRenew())
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	k, err := l.Lock(ctx, name)
	if err != nil {
		panic(err)
	}
	held, own := k.Context(), k.Fence()
	fmt.Println(own)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		valid, lost, refused := k.Valid(), false, false
		accepted, err := fenced.Run(ctx, rdb, []string{name + ".register"}, own, lines.Text()).Bool()
		if err != nil {
			panic(err)
		}
		if !valid {
			select {
			case <-held.Done():
				lost = errors.Is(context.Cause(held), sluice.ErrLost)
			case <-time.After(10 * time.Second):
			}
			refused = errors.Is(k.Unlock(ctx), sluice.ErrNotHeld)
		}
		fmt.Println(valid, lost, accepted, refused)
	}
}

// TestLock_IsLostByAStoppedProcess stops a holder's process for twice its TTL. The holder
// cannot know while it is stopped; the first call that it makes afterwards returns the
// truth.
func TestLock_IsLostByAStoppedProcess(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // on a busy machine a renewal takes a while
	s := redistest.Redis(t)
	rdb, lag := s.Client(t), systest.LagOf(t, s.Client(t))
	for range 2 {
		name := redistest.Name(t)
		holder := systest.StartChild(t, "holder", s.Addr, name, ttl)
		var first int64
		holder.Answer(&first)
		require.Never(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 }, ttl, 10*time.Millisecond, "not renewed")
		var valid, lost, accepted, refused bool
		holder.Tell("before")
		holder.Answer(&valid, &lost, &accepted, &refused)
		require.True(t, valid)
		require.True(t, accepted)

		require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
		stopped := time.Now()
		l := systest.NewLocker(t, rdb, sluice.WithFencing(), sluice.WithAutoRenew())
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(stopped), ttl+200*time.Millisecond+10*lag())
		require.Greater(t, k.Fence(), first)
		written, err := fenced.Run(t.Context(), rdb, []string{name + ".register"}, k.Fence(), "meanwhile").Bool()
		require.NoError(t, err)
		require.True(t, written)
		holder.Tell("after") // what it finds when it goes on
		require.Never(t, func() bool { return !k.Valid() }, time.Until(stopped.Add(2*ttl)), 10*time.Millisecond)
		require.NoError(t, holder.Process.Signal(syscall.SIGCONT))

		holder.Answer(&valid, &lost, &accepted, &refused)
		require.False(t, valid)
		require.True(t, lost)
		require.True(t, refused)
		require.False(t, accepted)
		require.Equal(t, "meanwhile", rdb.HGet(t.Context(), name+".register", "value").Val())
		require.Equal(t, k.Token(), rdb.Get(t.Context(), "Lock:"+name).Val())
		require.NoError(t, k.Unlock(t.Context()))
	}
}
