package sluice_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// checks are the three Checks on a client.
func checks(t *testing.T, rdb redis.UniversalClient) map[string]func(context.Context) error {
	t.Helper()
	l := systest.NewLocker(t, rdb, sluice.WithFencing())
	permits := systest.NewLocker(t, rdb, sluice.WithPermits(2), sluice.WithLockPrefix("L-"))
	q := systest.NewQueue(t, rdb)
	w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }}
	return map[string]func(context.Context) error{"locker": l.Check, "permits": permits.Check, "queue": q.Check, "worker": w.Check}
}

// TestCheck_SaysNothingOfAHealthyServer, and changes nothing there.
func TestCheck_SaysNothingOfAHealthyServer(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, check := range checks(t, s.Client(t)) {
			require.NoError(t, check(t.Context()), name)
		}
	})
}

// TestCheck_SaysWhatIsWrongInWords, with no secret.
func TestCheck_SaysWhatIsWrongInWords(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "requirepass", "right").Err())
	replica := redistest.Start(t, "--replicaof", "127.0.0.1", "1")
	evicting := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	node := redistest.Start(t, "--cluster-enabled", "yes")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	closed := systest.Dial(t, redis.Options{Addr: s.Addr})
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
		is   error
	}{
		"wrong password": {systest.Dial(t, redis.Options{Addr: s.Addr, Password: "hunter2"}), "does not accept the user's name or password", nil},
		"no password":    {systest.Dial(t, redis.Options{Addr: s.Addr}), "does not accept the user's name or password", nil},
		"wrong address":  {systest.Dial(t, redis.Options{Addr: "127.0.0.1:1"}), "connection refused", sluice.ErrUnavailable},
		"silent":         {systest.Dial(t, redis.Options{Addr: silent.Addr().String(), ReadTimeout: -1}), "no reply", sluice.ErrUnavailable},
		"closed client":  {closed, "the client is closed", redis.ErrClosed},
		"replica":        {systest.Dial(t, redis.Options{Addr: replica.Addr}), "READONLY", sluice.ErrUnavailable},
		"evicting":       {systest.Dial(t, redis.Options{Addr: evicting.Addr}), "maxmemory-policy is allkeys-lru", nil},
		"cluster down":   {systest.Dial(t, redis.Options{Addr: node.Addr}), "CLUSTERDOWN", sluice.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for half, check := range checks(t, c.rdb) {
				t.Run(half, func(t *testing.T) { // at once: without a reply, each takes seconds
					t.Parallel()
					start := time.Now()
					err := check(t.Context())
					require.ErrorContains(t, err, c.says)
					require.NotContains(t, err.Error(), "hunter2")
					if c.is != nil {
						require.ErrorIs(t, err, c.is)
					}
					require.NotErrorIs(t, err, sluice.ErrUnknown)
					require.Less(t, time.Since(start), time.Minute)
				})
			}
		})
	}
}

// TestCheck_OfABadWorkerIsInvalid, and a Check of a queue that is not there yet leaves nothing.
func TestCheck_OfABadWorkerIsInvalid(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	q := systest.NewQueue(t, rdb)
	require.ErrorIs(t, (&sluice.Worker{Queue: q}).Check(t.Context()), sluice.ErrInvalid)
	require.ErrorIs(t, (&sluice.Worker{}).Check(t.Context()), sluice.ErrInvalid)
	name := redistest.Name(t)
	absent, err := sluice.NewQueue(rdb, name)
	require.NoError(t, err)
	require.NoError(t, absent.Check(t.Context()))
	require.Empty(t, rdb.Keys(t.Context(), "*"+name+"*").Val(), "it has left something")
}

// TestWorker_LogsToTheDefaultLogger what keeps it from working, and each task that dies once.
func TestWorker_LogsToTheDefaultLogger(t *testing.T) {
	var log systest.Buffer
	before := slog.Default()
	slog.SetDefault(systest.LogTo(&log))
	defer slog.SetDefault(before)
	s := redistest.Redis(t)
	run := func(rdb redis.UniversalClient, q *sluice.Queue, until string) string {
		w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return sluice.Permanent(errors.New("no such order")) }}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		require.Eventually(t, func() bool { return strings.Contains(log.String(), until) }, 20*time.Second, 10*time.Millisecond, until)
		cancel()
		<-ended
		return log.String()
	}
	for until, options := range map[string]redis.Options{
		"connection refused": {Addr: "127.0.0.1:1"}, "WRONGPASS": {Addr: s.Addr, Username: "nobody", Password: "hunter2"},
	} {
		rdb := systest.Dial(t, options)
		require.NotContains(t, run(rdb, systest.NewQueue(t, rdb), until), "hunter2")
	}
	closed := systest.Dial(t, redis.Options{Addr: s.Addr})
	require.NoError(t, closed.Close())
	run(closed, systest.NewQueue(t, closed), "client is closed")

	rdb := s.Client(t)
	q := systest.NewQueue(t, rdb)
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "dead"})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(run(rdb, q, "task=dead"), "task=dead"))
	require.Contains(t, log.String(), `error="no such order"`)
}
