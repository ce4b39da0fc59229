package sluicekratos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-kratos/kratos/v2"
	"github.com/go-kratos/kratos/v2/log"
	kratoshttp "github.com/go-kratos/kratos/v2/transport/http"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	sluicekratos "github.com/sluice-go/sluice/contrib/kratos"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	log.SetLogger(quiet) // here, as kratos.Logger sets it for all applications of a process
	systest.Main(m)
}

type runFunc func(ctx context.Context) error

func (run runFunc) Run(ctx context.Context) error { return run(ctx) }

var quiet = log.NewStdLogger(io.Discard)

// TestServer_ApplicationHandlesTasksAndStops: a task that an HTTP request has enqueued is in its
// handler when the application stops. App.Run returns when it is done, and nothing goes on after
// that, which no other test may blur at the same time.
func TestServer_ApplicationHandlesTasksAndStops(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	queue, err := sluice.NewQueue(rdb, "orders")
	require.NoError(t, err)
	began, handled, application := make(chan struct{}), false, ""
	pool := &sluice.Pool{Grace: 50 * time.Millisecond, Logger: sluicekratos.Logger(quiet), Workers: []*sluice.Worker{
		{Queue: queue, Handler: func(ctx context.Context, _ sluice.Entry) error {
			if app, ok := kratos.FromContext(ctx); ok {
				application = app.Name()
			}
			close(began)
			<-ctx.Done() // until 50 ms after Stop
			handled = true
			return nil
		}},
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web := kratoshttp.NewServer(kratoshttp.Listener(listener))
	web.HandleFunc("/orders", func(w http.ResponseWriter, r *http.Request) {
		if _, err := queue.Enqueue(r.Context(), sluice.Task{ID: "order-1"}); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	app := kratos.New(kratos.Name("shop"), kratos.Server(web, sluicekratos.NewServer(pool)), kratos.StopTimeout(time.Minute))
	ended := make(chan error, 1)
	go func() { ended <- app.Run() }() // ends with app.Stop
	response, err := http.Post("http://"+listener.Addr().String()+"/orders", "", nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	<-began
	require.NoError(t, app.Stop())
	require.NoError(t, <-ended)
	require.True(t, handled, "Run has not waited for the handler")
	require.Equal(t, "shop", application)
	stats, err := queue.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Finished)
	require.Zero(t, stats.Due+stats.Scheduled+stats.Leased+stats.Dead)
	require.NoError(t, rdb.Close())
	systest.RequireNoGoroutines(t)
}

// TestServer_ErrorEndsTheApplication: Run returns it when the other servers have stopped.
func TestServer_ErrorEndsTheApplication(t *testing.T) {
	t.Parallel()
	app := kratos.New(kratos.Server(kratoshttp.NewServer(kratoshttp.Address("127.0.0.1:0")), sluicekratos.NewServer(&sluice.Worker{})))
	require.ErrorIs(t, app.Run(), sluice.ErrInvalid)
}

func TestServer_StopMayComeAgainAndBeforeStart(t *testing.T) {
	t.Parallel()
	runs := 0
	s := sluicekratos.NewServer(runFunc(func(context.Context) error { runs++; return nil }))
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Start(t.Context()))
	require.Zero(t, runs)
}

// TestServer_StopWaitsUntilItsContextEnds, and Start until the Runner has returned.
func TestServer_StopWaitsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	began, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	unfinished := &sluice.UnfinishedError{Running: 1}
	s := sluicekratos.NewServer(runFunc(func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		<-release
		return unfinished
	}))
	go func() { ended <- s.Start(context.WithoutCancel(t.Context())) }() // ends with release
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Stop(ctx), context.DeadlineExceeded)
	require.Empty(t, ended)
	close(release)
	require.NoError(t, s.Stop(t.Context()))
	require.ErrorIs(t, <-ended, unfinished)
}

var _ = systest.Role("shop", func(address string) {
	systest.ExitWithStdin()
	rdb := redis.NewClient(&redis.Options{Addr: address})
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		panic(err)
	}
	worker := &sluice.Worker{
		Queue: queue, Concurrency: 1, Lease: 5 * time.Second, Grace: 100 * time.Millisecond, Logger: sluicekratos.Logger(quiet),
		Handler: func(ctx context.Context, e sluice.Entry) error {
			fmt.Println(e.ID)
			<-ctx.Done() // until 100 ms after Stop
			if e.Kind == "hang" {
				select {}
			}
			return nil
		},
	}
	err = kratos.New(kratos.Server(sluicekratos.NewServer(worker)), kratos.StopTimeout(20*time.Second)).Run()
	var unfinished *sluice.UnfinishedError
	switch {
	case errors.As(err, &unfinished):
		fmt.Println("unfinished:", unfinished.Running)
	case err != nil:
		panic(err)
	}
	os.Exit(0)
})

// TestServer_EndsWithASignal: a process of Kratos is sent a SIGTERM while it handles a task. It ends
// when that is done, and gives back what it has not begun. If the handler hangs, it ends after Grace
// and a second, and says so; the task is handed out again when its lease ends.
func TestServer_EndsWithASignal(t *testing.T) {
	t.Parallel()
	for kind, due := range map[string]int64{"good": 1, "hang": 2} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			queue, err := sluice.NewQueue(server.Client(t), "orders")
			require.NoError(t, err)
			_, err = queue.EnqueueBatch(t.Context(), []sluice.Task{{ID: "order-1", Kind: kind}, {ID: "order-2", Kind: kind}})
			require.NoError(t, err)
			child := systest.StartChild(t, "shop", server.Addr)
			var word string
			child.Answer(&word)
			require.NoError(t, child.Process.Signal(syscall.SIGTERM))
			if kind == "hang" {
				var running int
				child.Answer(&word, &running)
				require.Equal(t, 1, running)
			}
			require.NoError(t, child.Wait())
			var stats sluice.Stats
			require.Eventually(t, func() bool {
				stats, err = queue.Stats(t.Context())
				return err == nil && stats.Due == due
			}, 20*time.Second, 10*time.Millisecond, "%+v", &stats)
			require.Zero(t, stats.Leased)
			require.Equal(t, 2-due, stats.Finished)
		})
	}
}

// lines collects what a logger writes.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// TestLogger_WritesByKratos: with the fields of With and of the message, and no attribute of one
// logger in another.
func TestLogger_WritesByKratos(t *testing.T) {
	t.Parallel()
	var out lines
	parent := sluicekratos.Logger(log.NewStdLogger(&out)).With("queue", "orders")
	left, right := parent.With("side", "left"), parent.With("side", "right")
	left.Info("worked", "id", "order-1")
	right.Warn("failed", "error", errors.New("busy"))
	right.Error("panicked")
	parent.Debug("looked")
	require.Equal(t, `INFO queue=orders side=left msg=worked id=order-1
WARN queue=orders side=right msg=failed error=busy
ERROR queue=orders side=right msg=panicked
DEBUG queue=orders msg=looked
`, out.text.String())
}
