package sluice_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// fenced writes to a register that refuses a writer whose fence is lower than that
// of one before. KEYS[1] a hash; ARGV[1] fence, ARGV[2] value; RETURNS 1 written,
// 0 refused.
var fenced = redis.NewScript(`
if tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1`)

// hold is the role "holder". Its settings are "ADDR NAME TTL": it takes the lock
// with auto-renewal and prints its fence. To each line it answers whether the lock
// is valid; whether Context ended with ErrLost within 100ms, if it isn't; whether a
// write with its fence was accepted; and whether Unlock said ErrNotHeld, if it
// isn't.
func hold(settings string) {
	var addr, name string
	var ttl time.Duration
	if _, err := fmt.Sscan(settings, &addr, &name, (*duration)(&ttl)); err != nil {
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
			case <-time.After(100 * time.Millisecond):
			}
			refused = errors.Is(k.Unlock(ctx), sluice.ErrNotHeld)
		}
		fmt.Println(valid, lost, accepted, refused)
	}
}

// TestStopped stops a holder's process for twice its TTL. Nobody can tell it, but
// the first thing that it asks when it goes on is answered right.
func TestStopped(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	s := redistest.Redis(t)
	rdb := s.Client(t)
	for range 2 {
		name := redistest.Name(t)
		holder := startChild(t, "holder", s.Addr, name, ttl)
		var first int64
		holder.answer(&first)
		time.Sleep(ttl) // renewals
		var valid, lost, accepted, refused bool
		holder.tell("before")
		holder.answer(&valid, &lost, &accepted, &refused)
		require.True(t, valid)
		require.True(t, accepted)

		require.NoError(t, holder.cmd.Process.Signal(syscall.SIGSTOP))
		stopped := time.Now()
		l := newLocker(t, rdb, sluice.WithFencing(), sluice.WithAutoRenew())
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(stopped), ttl+200*time.Millisecond)
		require.Greater(t, k.Fence(), first)
		written, err := fenced.Run(t.Context(), rdb, []string{name + ".register"}, k.Fence(), "meanwhile").Bool()
		require.NoError(t, err)
		require.True(t, written)
		holder.tell("after") // what it finds when it goes on
		time.Sleep(time.Until(stopped.Add(2 * ttl)))
		require.NoError(t, holder.cmd.Process.Signal(syscall.SIGCONT))

		holder.answer(&valid, &lost, &accepted, &refused)
		require.False(t, valid)
		require.True(t, lost)
		require.True(t, refused)
		require.False(t, accepted)
		require.Equal(t, "meanwhile", rdb.HGet(t.Context(), name+".register", "value").Val())
		require.Equal(t, k.Token(), rdb.Get(t.Context(), "Lock:"+name).Val())
		require.NoError(t, k.Unlock(t.Context()))
	}
}
