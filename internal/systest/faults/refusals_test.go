package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// refusal is something that a server answers for a while, instead of carrying out what it is sent.
type refusal struct {
	code string
	// begin has the server answer so, until it is ended.
	begin func(t *testing.T, s *redistest.Server, admin redis.UniversalClient) (end func())
	// atOnce says that nothing is sent again, since it seldom passes soon.
	atOnce bool
	// closes says that the connection is closed, perhaps before the answer was read.
	closes bool
}

// set returns a refusal that is had by a setting of the server's.
func set(name, on, off string) func(*testing.T, *redistest.Server, redis.UniversalClient) func() {
	return func(t *testing.T, _ *redistest.Server, admin redis.UniversalClient) func() {
		require.NoError(t, admin.ConfigSet(t.Context(), name, on).Err())
		return func() { require.NoError(t, admin.ConfigSet(t.Context(), name, off).Err()) }
	}
}

var refusals = []refusal{
	{code: "BUSY", begin: func(t *testing.T, s *redistest.Server, admin redis.UniversalClient) func() {
		require.NoError(t, admin.ConfigSet(t.Context(), "lua-time-limit", "20").Err())
		other := systest.Dial(t, redis.Options{Addr: s.Addr, ReadTimeout: time.Minute, MaxRetries: -1})
		ended := make(chan struct{})
		go func() { // another program's script, until it is killed
			defer close(ended)
			_ = other.Eval(context.WithoutCancel(t.Context()), "while true do end", nil).Err()
		}()
		for admin.Ping(t.Context()).Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return func() {
			require.NoError(t, admin.ScriptKill(t.Context()).Err())
			<-ended
		}
	}},
	{code: "NOREPLICAS", begin: set("min-replicas-to-write", "1", "0")},
	{code: "MISCONF", begin: func(t *testing.T, s *redistest.Server, admin redis.UniversalClient) func() {
		ctx := t.Context()
		inTheWay := filepath.Join(s.Dir(), "dump.rdb", "directory")
		require.NoError(t, os.MkdirAll(inTheWay, 0o700))
		require.NoError(t, admin.ConfigSet(ctx, "save", "3600 1000000").Err())
		saved := func(want string) {
			require.NoError(t, admin.BgSave(ctx).Err())
			require.Eventually(t, func() bool {
				return admin.InfoMap(ctx, "persistence").Val()["Persistence"]["rdb_bgsave_in_progress"] == "0"
			}, 20*time.Second, time.Millisecond)
			require.Equal(t, want, admin.InfoMap(ctx, "persistence").Val()["Persistence"]["rdb_last_bgsave_status"])
		}
		saved("err")
		return func() {
			require.NoError(t, os.RemoveAll(filepath.Dir(inTheWay)))
			saved("ok")
		}
	}},
	{code: "READONLY", begin: func(t *testing.T, _ *redistest.Server, admin redis.UniversalClient) func() {
		require.NoError(t, admin.SlaveOf(t.Context(), "127.0.0.1", "1").Err())
		return func() { require.NoError(t, admin.SlaveOf(t.Context(), "NO", "ONE").Err()) }
	}},
	{code: "MASTERDOWN", begin: func(t *testing.T, _ *redistest.Server, admin redis.UniversalClient) func() {
		require.NoError(t, admin.ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err())
		require.NoError(t, admin.SlaveOf(t.Context(), "127.0.0.1", "1").Err())
		return func() { require.NoError(t, admin.SlaveOf(t.Context(), "NO", "ONE").Err()) }
	}},
	{code: "max number of clients", closes: true, begin: func(t *testing.T, _ *redistest.Server, admin redis.UniversalClient) func() {
		require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "1").Err())
		require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
		return func() { require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "10000").Err()) }
	}},
	{code: "OOM", begin: set("maxmemory", "1", "0"), atOnce: true},
}

// eachRefusal starts a server for each refusal of a kind, and calls f with it, a client that has
// one connection to it, and all operations of the table on another client, each on its own fixture.
func eachRefusal(t *testing.T, of func(refusal) bool, f func(t *testing.T, r refusal, s *redistest.Server, admin redis.UniversalClient, all []operations.Ready)) {
	for _, r := range refusals {
		if !of(r) {
			continue
		}
		t.Run(r.code, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			admin := systest.Dial(t, redis.Options{Addr: s.Addr, PoolSize: 1})
			rdb := s.Client(t)
			var all []operations.Ready
			operations.EachKind(func(kind string, op operations.Operation, options ...sluice.LockOption) {
				if op.Lost != operations.Unavailable { // else it says how the server is now
					op.Name = kind
					all = append(all, op.Ready(t, operations.New(t, rdb, append(options, sluice.WithTTL(time.Hour))...)))
				}
			})
			f(t, r, s, admin, all)
		})
	}
}

// TestRefusals_ThatPassAreWaitedOut: whatever it is that a server answers for half a second, no
// operation fails for it.
func TestRefusals_ThatPassAreWaitedOut(t *testing.T) {
	t.Parallel()
	passes := func(r refusal) bool { return !r.atOnce && !r.closes }
	eachRefusal(t, passes, func(t *testing.T, r refusal, s *redistest.Server, admin redis.UniversalClient, all []operations.Ready) {
		end := r.begin(t, s, admin)
		errs, took := make([]error, len(all)), make([]time.Duration, len(all))
		var under sync.WaitGroup
		for i, op := range all {
			under.Go(func() {
				began := time.Now()
				_, errs[i] = op.Do(t.Context())
				took[i] = time.Since(began)
			})
		}
		time.Sleep(500 * time.Millisecond)
		end()
		under.Wait()
		for i, op := range all {
			if strings.HasPrefix(op.Name, "Locker.Close") && took[i] >= time.Second {
				continue // which is for how long it waits: the machine is busy
			}
			require.NoError(t, errs[i], op.Name)
		}
	})
}

// TestRefusals_ThatLastAreErrUnavailable: an operation that is refused until its context ends, or
// at once, has done nothing, and says so; and the same operation works when it is refused no more.
func TestRefusals_ThatLastAreErrUnavailable(t *testing.T) {
	t.Parallel()
	all := func(refusal) bool { return true }
	eachRefusal(t, all, func(t *testing.T, r refusal, s *redistest.Server, admin redis.UniversalClient, all []operations.Ready) {
		looker := systest.Dial(t, redis.Options{Addr: s.Addr, ReadTimeout: time.Minute}) // on a busy machine an answer takes its time
		before := make([]map[string]string, len(all))
		for i, op := range all {
			before[i] = operations.State(t, looker, op.On.Name)
		}
		end := r.begin(t, s, admin)
		errs := make([]error, len(all))
		var under sync.WaitGroup
		for i, op := range all {
			under.Go(func() { _, errs[i] = op.Do(systest.Within(t, 5*time.Second)) })
		}
		under.Wait()
		end()
		refused := 0
		for i, op := range all {
			if op.Outlives || op.Lost == operations.GoesOn || op.Lost == operations.Local {
				continue // it goes on, or sends nothing
			}
			if errs[i] == nil || errs[i] == context.DeadlineExceeded { //nolint:errorlint // by itself it is that of a function which was called late
				require.False(t, op.Adds, op.Name)
				continue // a server that writes nothing may read
			}
			isLate := errors.Is(errs[i], context.DeadlineExceeded) && !errors.Is(errs[i], sluice.ErrUnavailable)
			if isLate && errors.Is(errs[i], sluice.ErrUnknown) {
				continue // on a busy machine: the server had it, perhaps after it had refused the others
			}
			operations.Same(t, before[i], operations.State(t, looker, op.On.Name), "%s: %v", op.Name, errs[i])
			if isLate {
				continue // likewise: nothing was sent
			}
			refused++
			require.ErrorIs(t, errs[i], sluice.ErrUnavailable, op.Name)
			require.NotErrorIs(t, errs[i], sluice.ErrLocked, op.Name)
			if !r.closes {
				require.ErrorContains(t, errs[i], r.code, op.Name)
				require.Equal(t, r.atOnce, !errors.Is(errs[i], context.DeadlineExceeded), "%s: %v", op.Name, errs[i])
			}
		}
		require.Greater(t, refused, 8)
		t.Logf("%d of %d are refused", refused, len(all))
	})
}
