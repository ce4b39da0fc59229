package gozero_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/zeromicro/go-zero/core/conf"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/logx/logtest"
	"github.com/zeromicro/go-zero/core/service"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
	"github.com/zeromicro/go-zero/rest"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/contrib/gozero"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }

type runFunc func(ctx context.Context) error

func (run runFunc) Run(ctx context.Context) error { return run(ctx) }

// TestService_GroupHandlesTasksAndStops: the group's Stop returns when the handler that runs has,
// and its task is done; nothing goes on after that.
func TestService_GroupHandlesTasksAndStops(t *testing.T) {
	logtest.Discard(t)
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	queue, err := sluice.NewQueue(rdb, "orders")
	require.NoError(t, err)
	began, handled := make(chan struct{}), false
	pool := &sluice.Pool{Grace: 50 * time.Millisecond, Logger: gozero.Logger(), Workers: []*sluice.Worker{
		{Queue: queue, Handler: func(ctx context.Context, _ sluice.Entry) error {
			close(began)
			<-ctx.Done() // until 50 ms after Stop
			handled = true
			return nil
		}},
	}}
	group := service.NewServiceGroup()
	group.Add(gozero.NewService(pool))
	ended := make(chan struct{})
	go func() { // ends with the group
		group.Start()
		close(ended)
	}()
	_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "order-1"})
	require.NoError(t, err)
	<-began
	group.Stop()
	require.True(t, handled, "Stop has not waited for the handler")
	<-ended
	stats, err := queue.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Finished)
	require.Zero(t, stats.Due+stats.Scheduled+stats.Leased+stats.Dead)
	require.NoError(t, rdb.Close())
	systest.RequireNoGoroutines(t)
}

func TestService_StopMayComeAgainAndBeforeStart(t *testing.T) {
	t.Parallel()
	runs := 0
	s := gozero.NewService(runFunc(func(context.Context) error { runs++; return nil }))
	s.Stop()
	s.Stop()
	s.Start()
	require.Zero(t, runs)
}

// TestService_ErrorsAreSeen: that of a Worker which cannot run ends the process, as it does in
// go-zero's servers; that of one which has stopped is in the log.
func TestService_ErrorsAreSeen(t *testing.T) {
	log := logtest.NewCollector(t)
	func() {
		defer func() { require.ErrorIs(t, recover().(error), sluice.ErrInvalid) }()
		gozero.NewService(&sluice.Worker{}).Start()
	}()
	require.Contains(t, log.String(), "sluice: the service has ended with an error")

	log.Reset()
	began, ended := make(chan struct{}), make(chan struct{})
	s := gozero.NewService(runFunc(func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		return &sluice.UnfinishedError{Running: 3}
	}))
	go func() { // ends with Stop
		s.Start()
		close(ended)
	}()
	<-began
	s.Stop()
	<-ended
	require.Contains(t, log.String(), (&sluice.UnfinishedError{Running: 3}).Error())
}

func TestGrace_EndsBeforeTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wrapUp, wait, grace time.Duration }{
		{0, 0, 3 * time.Second}, // go-zero's defaults
		{time.Second, 5500 * time.Millisecond, 3 * time.Second},
		{2 * time.Second, 30 * time.Second, 26500 * time.Millisecond},
		{time.Second, 2 * time.Second, time.Millisecond},
	} {
		require.Equal(t, c.grace, gozero.Grace(c.wrapUp, c.wait), "%+v", c)
	}
}

// config is that of a service, as goctl makes it.
type config struct {
	rest.RestConf
	Redis zeroredis.RedisConf
}

const configText = `
Name: shop
Host: 127.0.0.1
Port: 0
Log: {Level: severe, Stat: false}
Shutdown: {WaitTime: %s}
Redis: {Host: "%s", NonBlock: false, PingTimeout: 20s}
`

var _ = systest.Role("shop", func(settings string) {
	systest.ExitWithStdin()
	var address, wait string
	if _, err := fmt.Sscan(settings, &address, &wait); err != nil {
		panic(err)
	}
	var c config
	logx.Must(conf.LoadFromYamlBytes(fmt.Appendf(nil, configText, wait, address), &c))
	c.Shutdown.WrapUpTime = 0 // go-zero's default: one that is set is read without a lock at a signal, which is a data race
	server := rest.MustNewServer(c.RestConf)
	sc, err := gozero.NewServiceContext(c.Redis)
	logx.Must(err)
	orders, err := sluice.NewQueue(sc.Redis, "orders")
	logx.Must(err)
	worker := &sluice.Worker{
		Queue: orders, Concurrency: 1, Lease: 5 * time.Second, Grace: 100 * time.Millisecond, Logger: gozero.Logger(),
		Handler: func(ctx context.Context, e sluice.Entry) error {
			fmt.Println(e.ID)
			<-ctx.Done() // until 100 ms after the service's Stop
			if e.Kind == "hang" {
				select {}
			}
			return nil
		},
	}
	group := service.NewServiceGroup()
	group.Add(server)
	group.Add(gozero.NewService(worker))
	group.Start()
	if err := sc.Close(); err != nil {
		panic(err)
	}
	os.Exit(0)
})

// TestService_EndsWithASignal: a process of go-zero, which serves HTTP too, is sent a SIGTERM while
// it handles a task. It ends when that is done, and gives back what it has not begun. If the handler
// hangs, go-zero kills the process, and the task is handed out again when its lease ends.
func TestService_EndsWithASignal(t *testing.T) {
	t.Parallel()
	for kind, wait := range map[string]string{"good": "60s", "hang": "1500ms"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			queue, err := sluice.NewQueue(server.Client(t), "orders")
			require.NoError(t, err)
			_, err = queue.EnqueueBatch(t.Context(), []sluice.Task{{ID: "order-1", Kind: kind}, {ID: "order-2", Kind: kind}})
			require.NoError(t, err)
			child := systest.StartChild(t, "shop", server.Addr, wait)
			var begun string
			child.Answer(&begun)
			require.NoError(t, child.Process.Signal(syscall.SIGTERM))
			err = child.Wait()
			if kind == "good" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "signal: terminated")
			}
			due := 1
			if kind == "hang" {
				due = 2
			}
			var stats sluice.Stats
			require.Eventually(t, func() bool {
				stats, err = queue.Stats(t.Context())
				return err == nil && stats.Due == int64(due)
			}, 20*time.Second, 10*time.Millisecond, "%+v", &stats)
			require.Zero(t, stats.Leased)
			require.EqualValues(t, 2-due, stats.Finished)
		})
	}
}

// TestServiceContext_HasAClientAndALocker: both work, and end with Close.
func TestServiceContext_HasAClientAndALocker(t *testing.T) {
	t.Parallel()
	address := redistest.Start(t).Addr
	sc, err := gozero.NewServiceContext(zeroredis.RedisConf{Host: address, Type: "node", PingTimeout: 20 * time.Second}, sluice.WithTTL(10*time.Second))
	require.NoError(t, err)
	lock, err := sc.Locker.TryLock(t.Context(), "stock:phone")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(t.Context()))
	require.NoError(t, sc.Close())
	_, err = sc.Locker.TryLock(t.Context(), "stock:phone")
	require.ErrorIs(t, err, sluice.ErrClosed)
	require.ErrorIs(t, sc.Redis.Ping(t.Context()).Err(), redis.ErrClosed)
}

func TestServiceContext_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	const password = "pass-" + "phrase"
	address := redistest.Start(t).Addr
	for name, c := range map[string]struct {
		conf zeroredis.RedisConf
		says string
	}{
		"no host":        {zeroredis.RedisConf{Type: "node"}, "empty redis host"},
		"no type":        {zeroredis.RedisConf{Host: "127.0.0.1:1"}, "empty redis type"},
		"another type":   {zeroredis.RedisConf{Host: "127.0.0.1:1", Type: "sentinel"}, `"sentinel"`},
		"no server":      {zeroredis.RedisConf{Host: "127.0.0.1:1", Type: "node", PingTimeout: 20 * time.Second}, "server unavailable"},
		"wrong password": {zeroredis.RedisConf{Host: address, Type: "node", User: "nobody", Pass: password, PingTimeout: 20 * time.Second}, "WRONGPASS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := gozero.NewServiceContext(c.conf)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), password)
		})
	}
}

// TestServiceContext_FollowsTheConfiguration: without a server, as NonBlock says.
func TestServiceContext_FollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	sc, err := gozero.NewServiceContext(zeroredis.RedisConf{
		Host: "127.0.0.1:1, 127.0.0.1:2", Type: "cluster", User: "sluice", Pass: "word", Tls: true, NonBlock: true, Protocol: 2, DisableIdentity: true,
	})
	require.NoError(t, err)
	cluster := sc.Redis.(*redis.ClusterClient).Options()
	require.Equal(t, []string{"127.0.0.1:1", "127.0.0.1:2"}, cluster.Addrs)
	require.Equal(t, []any{"sluice", "word", 2, true}, []any{cluster.Username, cluster.Password, cluster.Protocol, cluster.DisableIdentity})
	require.False(t, cluster.TLSConfig.InsecureSkipVerify)
	require.EqualValues(t, "disabled", cluster.MaintNotificationsConfig.Mode)
	require.NoError(t, sc.Close())
}

// TestLogger_WritesByLogx: with the fields of With and of the message, warnings as errors, and no
// attribute of one logger in another.
func TestLogger_WritesByLogx(t *testing.T) {
	log := logtest.NewCollector(t)
	parent := gozero.Logger().With("queue", "orders", "shop", "berlin", "worker", "one") // three leave room for a fourth behind them
	left, right := parent.With("side", "left"), parent.With("side", "right")
	for _, c := range []struct {
		write func()
		has   []string
	}{
		{func() { left.Info("worked", "id", "order-1") }, []string{`"level":"info"`, `"content":"worked"`, `"queue":"orders"`, `"side":"left"`, `"id":"order-1"`}},
		{func() { right.Warn("failed", "error", errors.New("busy")) }, []string{`"level":"error"`, `"side":"right"`, `"error":"busy"`}},
		{func() { parent.Debug("looked") }, []string{`"level":"debug"`, `"queue":"orders"`}},
	} {
		log.Reset()
		c.write()
		for _, text := range c.has {
			require.Contains(t, log.String(), text)
		}
	}
	require.NotContains(t, log.String(), "side")
}
