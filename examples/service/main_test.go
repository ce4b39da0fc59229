package main

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/service/shop"
)

func TestRun(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	go func() { // the line that it prints when it is ready
		_, _ = out.Read(make([]byte, 100))
		stop()
	}()
	require.NoError(t, run(ctx, []string{"-web", "127.0.0.1:0"}, in))
	require.Error(t, run(ctx, []string{"-pay-in", "soon"}, io.Discard))
}

// service is one that runs on a miniredis.
type service struct {
	*Service
	t    *testing.T
	rdb  *redis.Client
	url  string
	stop func() error // ends it, and returns Run's result
}

func start(t *testing.T, partner http.HandlerFunc) *service {
	t.Helper()
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	db, err := shop.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), 2)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	web := httptest.NewServer(partner)
	t.Cleanup(web.Close)
	s, err := NewService(db, rdb, Config{PayIn: 10 * time.Second, Sweep: 200 * time.Millisecond, Crash: 5 * time.Second, Partner: web.URL})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Locker.Close() })
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	return &service{s, t, rdb, "http://" + listener.Addr().String(), func() error { cancel(); return <-ended }}
}

// post repeats what the service asks to try again.
func (s *service) post(path string, body []byte) int {
	for began := time.Now(); ; {
		status, _, err := post(s.t.Context(), s.url+path, body)
		require.NoError(s.t, err)
		if status != http.StatusServiceUnavailable || time.Since(began) > 20*time.Second {
			return status
		}
	}
}

func post(ctx context.Context, url string, body []byte) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(data), err
}

// number runs a query for a number.
func number(t *testing.T, db *shop.Shop, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.DB.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

// requireDone waits until a task is done.
func (s *service) requireDone(task string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return number(s.t, s.Shop, "SELECT count(*) FROM done WHERE id = ?", task) == 1
	}, 20*time.Second, 10*time.Millisecond, task)
}

func picture(t *testing.T) []byte {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, png.Encode(&data, image.NewRGBA(image.Rect(0, 0, 64, 64))))
	return data.Bytes()
}

func TestService_DoesEachKind(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	require.Equal(t, 200, s.post("/buy?id=paid", nil))
	require.Equal(t, 200, s.post("/buy?id=paid", nil), "a repeat")
	require.Equal(t, 200, s.post("/pay?id=paid&to=ann", nil))
	require.Equal(t, 200, s.post("/pay?id=paid&to=ann", nil), "a repeat")
	require.Equal(t, 200, s.post("/buy?id=unpaid", nil))
	require.Equal(t, 409, s.post("/buy?id=late", nil), "sold out")
	require.Equal(t, 409, s.post("/pay?id=nosuch", nil))
	require.Equal(t, 200, s.post("/thumbnail?id=good", picture(t)))
	require.Equal(t, 200, s.post("/thumbnail?id=bad", []byte("no picture")))
	require.Equal(t, 400, s.post("/thumbnail?id=large", make([]byte, 2<<20)))
	require.Equal(t, 400, s.post("/export?id="+url.QueryEscape(string(make([]byte, 600))), nil))
	require.Equal(t, 200, s.post("/export?id=1", nil))
	for _, task := range []string{"receipt:paid", "webhook:paid", "thumbnail:good", "export:1", "sweep"} {
		s.requireDone(task)
	}
	require.Equal(t, int32(2), asked.Load())
	require.Eventually(t, func() bool { return number(t, s.Shop, "SELECT stock FROM item") == 1 }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, 409, s.post("/pay?id=unpaid", nil), "too late")
	dead, err := s.Low.Get(t.Context(), "thumbnail:bad")
	require.NoError(t, err)
	require.Equal(t, sluice.StateDead, dead.State)
	require.NoError(t, s.stop())
}

// TestService_StopsGracefully: a handler that runs ends, and what was not begun is given back
// without a lost attempt.
func TestService_StopsGracefully(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	s := start(t, func(http.ResponseWriter, *http.Request) { close(begun); <-release })
	require.Equal(t, 200, s.post("/buy?id=1", nil))
	require.Equal(t, 200, s.post("/pay?id=1", nil))
	<-begun
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	require.NoError(t, s.stop())
	s.requireDone("webhook:1")
	stats, err := s.Default.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Leased)
}

// TestService_RollsBack also what a handler that panics has written.
func TestService_RollsBack(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	handler := s.inTx(func(ctx context.Context, e sluice.Entry) error {
		require.NoError(t, s.Shop.Record(ctx, e.ID, nil))
		switch e.ID {
		case "panics":
			panic("on purpose")
		case "fails":
			return io.EOF
		}
		return nil
	})
	require.Panics(t, func() { _ = handler(t.Context(), sluice.Entry{ID: "panics"}) })
	require.Error(t, handler(t.Context(), sluice.Entry{ID: "fails"}))
	require.NoError(t, handler(t.Context(), sluice.Entry{ID: "works"}))
	require.Equal(t, 1, number(t, s.Shop, "SELECT count(*) FROM done WHERE id IN ('panics', 'fails', 'works')"))
	require.NoError(t, s.stop())
}

// TestService_CancelBearsNoOrder: a crash before the commit leaves such a task.
func TestService_CancelBearsNoOrder(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, task := range []sluice.Task{{ID: "cancel:x", Kind: "cancel", Payload: []byte("x")}, {ID: "webhook:x", Kind: "webhook", Payload: []byte("x")}} {
		_, err := s.Default.Enqueue(t.Context(), task)
		require.NoError(t, err)
	}
	_, err := s.Receipts.Enqueue(t.Context(), sluice.Task{ID: "receipt:x"}, Email{Order: "x"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stats, err1 := s.Default.Stats(t.Context())
		critical, err2 := s.Critical.Stats(t.Context())
		return errors.Join(err1, err2) == nil && stats.Due+stats.Leased+critical.Due+critical.Leased == 0 && stats.Scheduled == 1 // the sweep
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, s.stop())
	require.Equal(t, 2, number(t, s.Shop, "SELECT stock FROM item"))
	require.Zero(t, number(t, s.Shop, "SELECT count(*) FROM done WHERE id LIKE '%:x'"))
}

// TestService_LooksUnderTheLock: a task that is worked on before its row is committed waits for
// that.
func TestService_LooksUnderTheLock(t *testing.T) {
	t.Parallel()
	s := start(t, func(http.ResponseWriter, *http.Request) {})
	require.Equal(t, 200, s.post("/buy?id=1", nil))
	require.NoError(t, s.change(t.Context(), func(ctx context.Context) error {
		_, err1 := s.Receipts.Enqueue(ctx, sluice.Task{ID: "receipt:1"}, Email{Order: "1"})
		_, err2 := s.Default.Enqueue(ctx, sluice.Task{ID: "webhook:1", Kind: "webhook", Payload: []byte("1")})
		require.NoError(t, errors.Join(err1, err2))
		for task, queue := range map[string]*sluice.Queue{"receipt:1": s.Critical, "webhook:1": s.Default} { // a handler that does not wait is done with it
			require.Eventually(t, func() bool {
				info, err := queue.Get(ctx, task)
				return errors.Is(err, sluice.ErrNotFound) || info.State == sluice.StateLeased
			}, 20*time.Second, time.Millisecond)
		}
		return s.Shop.Pay(ctx, "1")
	}))
	s.requireDone("receipt:1")
	s.requireDone("webhook:1")
	require.NoError(t, s.stop())
}

// TestService_EnqueuesBeforeTheCommit: what cannot be enqueued is not sold, and not paid.
func TestService_EnqueuesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	var away atomic.Bool
	queue, err := sluice.NewQueue(s.rdb, "critical", sluice.WithQueueHooks(sluice.QueueHooks{
		TasksSending: func(ctx context.Context, _ sluice.TasksSending) context.Context {
			if away.Load() {
				return ended
			}
			return ctx
		},
	}))
	require.NoError(t, err)
	other := &Service{s.Shop, s.Locker, queue, queue, queue, sluice.Typed[Email]{Queue: queue, Kind: "receipt"}, s.Config}
	require.NoError(t, other.Buy(t.Context(), "old"))
	away.Store(true)
	require.Error(t, other.Buy(t.Context(), "new"))
	require.Error(t, other.Pay(t.Context(), "old", "ann"))
	for order, want := range map[string]string{"old": "unpaid", "new": ""} {
		state, err := s.Shop.State(t.Context(), order)
		require.NoError(t, err)
		require.Equal(t, want, state)
	}
	require.NoError(t, s.stop())
}
