package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// poolWait is how long the clients of this file wait for a connection.
const poolWait = 100 * time.Millisecond

// small are clients of each kind whose pool has one connection, and what takes it.
func small(t *testing.T) map[string]func() (redis.UniversalClient, *redis.Client) {
	t.Helper()
	s, cluster := redistest.Start(t), redistest.StartCluster(t)
	sentinel := redistest.StartSentinelFor(t, s)
	plain := func() *redis.Client {
		return systest.Dial(t, redis.Options{Addr: s.Addr, PoolSize: 1, PoolTimeout: poolWait})
	}
	auto := func(rdb redis.UniversalClient) redis.UniversalClient {
		pipeliner, err := rdb.AutoPipeline()
		require.NoError(t, err)
		t.Cleanup(func() { _ = pipeliner.Close() })
		return pipeliner
	}
	inCluster := func() (*redis.ClusterClient, *redis.Client) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Addr}, PoolSize: 1, PoolTimeout: poolWait})
		t.Cleanup(func() { _ = rdb.Close() })
		node, err := rdb.MasterForKey(t.Context(), "{a}")
		require.NoError(t, err)
		return rdb, node
	}
	return map[string]func() (redis.UniversalClient, *redis.Client){
		"plain":                func() (redis.UniversalClient, *redis.Client) { rdb := plain(); return rdb, rdb },
		"autopipeline":         func() (redis.UniversalClient, *redis.Client) { rdb := plain(); return auto(rdb), rdb },
		"cluster":              func() (redis.UniversalClient, *redis.Client) { rdb, node := inCluster(); return rdb, node },
		"cluster/autopipeline": func() (redis.UniversalClient, *redis.Client) { rdb, node := inCluster(); return auto(rdb), node },
		"sentinel": func() (redis.UniversalClient, *redis.Client) {
			rdb := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: redistest.MasterName, SentinelAddrs: []string{sentinel.Addr}, PoolSize: 1, PoolTimeout: poolWait,
			})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb, rdb
		},
	}
}

// tries makes calls that do not wait, and returns their errors.
func tries(t *testing.T, l *sluice.Locker, q *sluice.Queue, held *sluice.Lock) map[string]error {
	t.Helper()
	_, locked := l.TryLock(t.Context(), "a")
	_, enqueued := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	_, claimed := q.Claim(t.Context(), 1, time.Minute) // is not repeated after a lost reply
	return map[string]error{
		"try lock": locked, "enqueue": enqueued, "claim": claimed, "extend": held.Extend(t.Context(), time.Minute),
	}
}

// TestClient_NoConnectionIsUnavailable: with each kind of client, a pool that has none
// that is free is definite, and is not tried again where no caller waits. (From go-redis 9.23 on
// pipelines have a pool of their own, and with it all that an autopipeline sends.)
func TestClient_NoConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, connect := range small(t) {
		if strings.Contains(name, "autopipeline") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			rdb, node := connect()
			l := systest.NewLocker(t, rdb, sluice.WithLockPrefix("{a}lock"+name))
			q, err := sluice.NewQueue(rdb, "a", sluice.WithQueuePrefix("{a}queue"+name))
			require.NoError(t, err)
			held, err := l.Lock(t.Context(), "held")
			require.NoError(t, err)
			taken := node.Conn()
			require.NoError(t, taken.Ping(t.Context()).Err())
			lag, start := systest.Lag(t), time.Now()
			for op, err := range tries(t, l, q, held) {
				require.ErrorIs(t, err, sluice.ErrUnavailable, op)
				require.ErrorIs(t, err, redis.ErrPoolTimeout, op)
				require.NotErrorIs(t, err, sluice.ErrUnknown, op)
			}
			require.Less(t, time.Since(start), 4*poolWait+200*time.Millisecond+10*lag(), "they were repeated")

			time.AfterFunc(5*poolWait, func() { _ = taken.Close() })
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, "a caller that waits goes on")
			require.NoError(t, k.Unlock(t.Context()))
		})
	}
}

// TestClient_ThatIsClosedIsADefiniteError: trying later does not help.
func TestClient_ThatIsClosedIsADefiniteError(t *testing.T) {
	t.Parallel()
	for name, connect := range small(t) {
		t.Run(name, func(t *testing.T) {
			rdb, _ := connect()
			l := systest.NewLocker(t, rdb)
			table := prepared(t, rdb, l)
			require.NoError(t, rdb.Close())
			lag, start := systest.Lag(t), time.Now()
			var all sync.WaitGroup
			definite := func(op string, err error) {
				assert.ErrorIs(t, err, redis.ErrClosed, op)
				assert.NotErrorIs(t, err, sluice.ErrUnavailable, op)
				assert.NotErrorIs(t, err, sluice.ErrUnknown, op)
			}
			for _, op := range table {
				if strings.Contains(name, "autopipeline") && op.Needs == operations.HeldSet {
					continue // its client is open, and so are pipelines
				}
				all.Go(func() { _, err := op.Do(t.Context()); definite(op.Name, err) })
			}
			all.Wait()
			if !strings.Contains(name, "autopipeline") {
				definite("unlock all", l.UnlockAll(t.Context()))
			}
			require.Less(t, time.Since(start), 5*time.Second+10*lag(), "what the client itself repeats")
		})
	}
}

// TestUnlockAll_ARefusalIsDefinite: it is the server's, and not ErrUnknown.
func TestUnlockAll_ARefusalIsDefinite(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	require.NoError(t, admin.ACLSetUser(t.Context(), "u", "on", "nopass", "allkeys", "allchannels", "allcommands").Err())
	l := systest.NewLocker(t, systest.Dial(t, redis.Options{Addr: s.Addr, Username: "u", Password: "-"}))
	_, err := l.Lock(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, admin.ACLSetUser(t.Context(), "u", "-evalsha", "-eval").Err())
	err = l.UnlockAll(t.Context())
	require.True(t, redis.HasErrorPrefix(errors.Unwrap(err), "NOPERM"), "%v", err)
	require.NotErrorIs(t, err, sluice.ErrUnknown)
	require.NotErrorIs(t, err, sluice.ErrUnavailable)
}

// everything uses every goroutine of the library for a while: waits, renewals, the
// janitor, the notifier, senders and a worker. What becomes of it is not its business.
func everything(t *testing.T, l *sluice.Locker, q *sluice.Queue, log *slog.Logger) {
	t.Helper()
	k, _ := l.Lock(systest.Within(t, 50*time.Millisecond), "renewed", sluice.WithAutoRenew(), sluice.WithTTL(30*time.Millisecond))
	_, _ = l.TryLock(systest.Within(t, 50*time.Millisecond), "tried")
	_, _ = l.Lock(systest.Within(t, 50*time.Millisecond), "held", sluice.WithRetryInterval(5*time.Millisecond))
	_, _ = l.Lock(systest.Within(t, 50*time.Millisecond), "held", sluice.WithFencing())
	_, _ = l.Inspect(systest.Within(t, 50*time.Millisecond), "held")
	_ = q.Wait(systest.Within(t, 50*time.Millisecond))
	_, _ = q.Peek(systest.Within(t, 50*time.Millisecond), 1)
	_, _ = q.Get(systest.Within(t, 50*time.Millisecond), "a")
	_, _ = q.Stats(systest.Within(t, 50*time.Millisecond))
	_, _ = q.List(systest.Within(t, 50*time.Millisecond), sluice.StateDead, sluice.TaskInfo{}, 1)
	_, _ = q.EnqueueBatch(systest.Within(t, 50*time.Millisecond), []sluice.Task{{ID: "a"}, {ID: "b"}})
	w := &sluice.Worker{
		Queue: q, Lease: 50 * time.Millisecond, Grace: time.Millisecond, Logger: log,
		Handler: func(context.Context, sluice.Entry) error {
			time.Sleep(20 * time.Millisecond) // the work, for which the lease is extended
			return errors.New("again")
		},
		Backoff: func(int, error) time.Duration { panic("backoff") },
	}
	_ = w.Run(systest.Within(t, 150*time.Millisecond))
	if k != nil {
		_ = k.Unlock(systest.Within(t, 50*time.Millisecond))
	}
}

// works requires that everything can be used.
func works(t *testing.T, l *sluice.Locker, q *sluice.Queue, log *slog.Logger) {
	t.Helper()
	k, err := l.Lock(systest.Within(t, 10*time.Second), "works")
	require.NoError(t, err)
	require.NoError(t, k.Unlock(t.Context()))
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "works"})
	require.NoError(t, err)
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	w := &sluice.Worker{Queue: q, Logger: log, Handler: func(_ context.Context, e sluice.Entry) error {
		if e.ID == "works" {
			close(done)
		}
		return nil
	}}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	<-done
	stop()
	require.NoError(t, <-ended)
}

// explosive is a client, and a hook of it, that panic as soon as they are armed.
type explosive struct {
	redis.UniversalClient
	armed atomic.Bool
	how   string
}

func (x *explosive) explode(how string) {
	if x.armed.Load() && x.how == how {
		panic("it exploded")
	}
}

func (x *explosive) Process(ctx context.Context, cmd redis.Cmder) error {
	x.explode("process")
	return x.UniversalClient.Process(ctx, cmd)
}

func (x *explosive) Pipeline() redis.Pipeliner {
	x.explode("pipeline")
	if x.armed.Load() && x.how == "nil pipeline" {
		return nil
	}
	return x.UniversalClient.Pipeline()
}

func (x *explosive) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	x.explode("subscribe")
	if x.armed.Load() && x.how == "nil subscription" {
		return nil
	}
	return x.UniversalClient.Subscribe(ctx, channels...)
}

func (x *explosive) DialHook(next redis.DialHook) redis.DialHook { return next }

func (x *explosive) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		x.explode("hook before")
		err := next(ctx, cmd)
		x.explode("hook after")
		return err
	}
}

func (x *explosive) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		x.explode("hook before")
		err := next(ctx, cmds)
		x.explode("hook after")
		return err
	}
}

// brokenLog is a slog.Handler that panics.
type brokenLog struct{ slog.Handler }

func (brokenLog) Enabled(context.Context, slog.Level) bool  { return true }
func (brokenLog) Handle(context.Context, slog.Record) error { panic("log") }
func (h brokenLog) WithAttrs([]slog.Attr) slog.Handler      { return h }
func (h brokenLog) WithGroup(string) slog.Handler           { return h }

// TestClient_APanicOfItIsAnError and ends no goroutine of the library's: everything works
// when it is over. A Logger that panics has no effect at all.
func TestClient_APanicOfItIsAnError(t *testing.T) {
	t.Parallel()
	log := slog.New(brokenLog{slog.DiscardHandler})
	for _, how := range []string{
		"process", "pipeline", "nil pipeline", "subscribe", "nil subscription", "hook before", "hook after",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := *redistest.Mini(t)
			x := &explosive{UniversalClient: s.Client(t), how: how}
			x.AddHook(x)
			prefix := redistest.Name(t)
			l := systest.NewLocker(t, x, sluice.WithLockPrefix(prefix))
			q := systest.NewQueue(t, x, sluice.WithPollInterval(10*time.Millisecond))
			_, err := systest.NewLocker(t, s.Client(t), sluice.WithLockPrefix(prefix)).Lock(t.Context(), "held")
			require.NoError(t, err)
			works(t, l, q, log)
			x.armed.Store(true)
			everything(t, l, q, log)
			x.armed.Store(false)
			works(t, l, q, log)
		})
	}
}

// TestClient_ADialerThatPanicsIsADefiniteError: Lock does not try it again for ten seconds.
func TestClient_ADialerThatPanicsIsADefiniteError(t *testing.T) {
	t.Parallel()
	rdb := systest.Dial(t, redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { panic("secret") }})
	l := systest.NewLocker(t, rdb)
	_, err := l.Lock(systest.Within(t, time.Minute), "a")
	require.Error(t, err)
	for _, not := range []error{sluice.ErrUnavailable, sluice.ErrUnknown, context.DeadlineExceeded} {
		require.NotErrorIs(t, err, not)
	}
	require.NotContains(t, err.Error(), "secret")
}

// oddReplies are of every type that RESP has, and none is one that the library asks for.
var oddReplies = []string{
	"$-1\r\n", "*-1\r\n", "_\r\n", ":-7\r\n", ":0\r\n", "$0\r\n\r\n", "$3\r\nodd\r\n", "+odd\r\n", "-\r\n", "-ODD\r\n",
	"*0\r\n", "*1\r\n:1\r\n", "*1\r\n*0\r\n", "*2\r\n$7\r\nmessage\r\n:1\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n$1\r\nb\r\n",
	"*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n", "*1\r\n$4\r\npong\r\n", "*3\r\n*1\r\n:1\r\n*1\r\n:2\r\n*1\r\n:3\r\n",
	"#t\r\n", "#f\r\n", ",1.5\r\n", ",inf\r\n", "(12345678901234567890\r\n", "=7\r\ntxt:odd\r\n", "!3\r\nODD\r\n",
	"%1\r\n$1\r\na\r\n:1\r\n", "~1\r\n:1\r\n", ">1\r\n:1\r\n", ">2\r\n$7\r\nmessage\r\n:1\r\n", "?\r\n",
}

// TestServer_AnOddReplyIsAnError: whatever a server says, nothing panics, and everything
// works when it is in its senses again.
func TestServer_AnOddReplyIsAnError(t *testing.T) {
	t.Parallel()
	for i, reply := range oddReplies {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := miniredis.RunT(t)
			m.ClockTTL(true)
			var odd atomic.Bool
			m.Server().SetPreHook(func(c *miniserver.Peer, command string, _ ...string) bool {
				switch command {
				case "SET", "EVAL", "EVALSHA", "SUBSCRIBE", "UNSUBSCRIBE", "PING":
					if odd.Load() {
						c.WriteRaw(reply)
						return true
					}
				}
				return false
			})
			rdb := systest.Dial(t, redis.Options{Addr: m.Addr(), ReadTimeout: 2 * time.Second}) // a busy machine takes half a second
			l, q := systest.NewLocker(t, rdb), systest.NewQueue(t, rdb, sluice.WithPollInterval(10*time.Millisecond))
			held, err := systest.NewLocker(t, systest.Dial(t, redis.Options{Addr: m.Addr()})).Lock(t.Context(), "held")
			require.NoError(t, err)
			works(t, l, q, nil)
			odd.Store(true)
			everything(t, l, q, nil)
			odd.Store(false)
			works(t, l, q, nil)
			require.NoError(t, held.Unlock(t.Context()))
		})
	}
}
