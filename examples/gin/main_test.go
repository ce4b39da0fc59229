package main

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode) // which prints no routes
	systest.Main(m)
}

// running is a shop that serves.
type running struct {
	*Shop
	t     *testing.T
	redis *miniredis.Miniredis
	url   string
	end   context.CancelFunc
	ended chan error // Run's result
}

// start has a shop of one phone serve until the test ends, or end is called.
func start(t *testing.T, change func(*Shop)) *running {
	t.Helper()
	r := &running{t: t, redis: miniredis.RunT(t), ended: make(chan error, 1)}
	rdb := redis.NewClient(&redis.Options{Addr: r.redis.Addr()})
	shop, err := NewShop(t.Context(), rdb, 1)
	require.NoError(t, err)
	change(shop)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.Shop, r.url = shop, "http://"+listener.Addr().String()
	ctx, end := context.WithCancel(context.Background())
	r.end = end
	go func() { // ends with end
		r.ended <- shop.Run(ctx, listener)
		_ = shop.Locker.Close()
		_ = rdb.Close()
	}()
	t.Cleanup(end)
	return r
}

// post returns the status of an answer. It may be called by any goroutine.
func (r *running) post(path, user string) int {
	request, err := http.NewRequest(http.MethodPost, r.url+path, nil)
	if err != nil {
		return 0
	}
	request.Header.Set("X-User", user)
	request.Close = true // no connection is kept
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// TestShop_SellsTheLastPhoneOnce: a repeat is no second order, and who comes later is told so.
func TestShop_SellsTheLastPhoneOnce(t *testing.T) {
	t.Parallel()
	shipped := make(chan string, 10)
	r := start(t, func(s *Shop) {
		s.Ship = func(_ context.Context, e sluice.Entry) error { shipped <- e.ID; return nil }
	})
	require.Equal(t, http.StatusUnauthorized, r.post("/orders", ""))
	require.Equal(t, http.StatusAccepted, r.post("/orders", "ann"))
	require.Equal(t, "phone:ann", <-shipped)
	require.Equal(t, http.StatusOK, r.post("/orders", "ann"))
	require.Equal(t, http.StatusGone, r.post("/orders", "bob"))
	r.end()
	require.NoError(t, <-r.ended)
	require.Empty(t, shipped)
	r.redis.Close()
}

// TestOnePerUser_AnswersConflict while that user's other request runs, and lets other users in.
func TestOnePerUser_AnswersConflict(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	r := start(t, func(s *Shop) {
		s.Charge = func(_ context.Context, user string) error {
			if user == "ann" {
				began <- struct{}{}
				<-release
			}
			return nil
		}
	})
	first := make(chan int, 1)
	go func() { first <- r.post("/payments", "ann") }() // ends with release
	<-began
	require.Equal(t, http.StatusConflict, r.post("/payments", "ann"))
	require.Equal(t, http.StatusNoContent, r.post("/payments", "bob"))
	close(release)
	require.Equal(t, http.StatusNoContent, <-first)
	go func() { first <- r.post("/payments", "ann") }() // ends at once: release is closed
	<-began
	require.Equal(t, http.StatusNoContent, <-first)
}

// TestOnePerUser_EndsTheRequestWithTheLock: the handler's context says that the lock is lost.
func TestOnePerUser_EndsTheRequestWithTheLock(t *testing.T) {
	t.Parallel()
	began, cause := make(chan struct{}), make(chan error, 1)
	r := start(t, func(s *Shop) {
		s.Charge = func(ctx context.Context, _ string) error {
			close(began)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}
	})
	answer := make(chan int, 1)
	go func() { answer <- r.post("/payments", "ann") }() // ends when the lock does
	<-began
	require.NoError(t, r.Locker.Close())
	require.Equal(t, http.StatusBadGateway, <-answer)
	require.ErrorIs(t, <-cause, sluice.ErrClosed)
	require.Equal(t, http.StatusServiceUnavailable, r.post("/payments", "ann"), "a Locker that is closed")
}

func TestShop_AnswersWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	r := start(t, func(*Shop) {})
	r.redis.Close()
	require.Equal(t, http.StatusServiceUnavailable, r.post("/orders", "ann"))
	require.Equal(t, http.StatusServiceUnavailable, r.post("/payments", "ann"))
}

// TestShop_StopsWhatRunsInOrder: a payment that runs is answered, then the worker waits for its
// handler, and nothing goes on after that.
func TestShop_StopsWhatRunsInOrder(t *testing.T) {
	before := runtime.NumGoroutine() // no other test runs at the same time
	charging, charged, shipping, shipped := make(chan struct{}), make(chan struct{}), make(chan struct{}), false
	r := start(t, func(s *Shop) {
		s.Charge = func(context.Context, string) error {
			close(charging)
			<-charged
			return nil
		}
		s.Ship = func(ctx context.Context, _ sluice.Entry) error {
			close(shipping)
			<-charged
			shipped = true
			return nil
		}
	})
	require.Equal(t, http.StatusAccepted, r.post("/orders", "ann"))
	<-shipping
	answer := make(chan int, 1)
	go func() { answer <- r.post("/payments", "ann") }() // ends with charged
	<-charging
	r.end()
	require.Eventually(t, func() bool { return r.post("/orders", "bob") == 0 }, 20*time.Second, time.Millisecond, "it serves no more")
	require.Empty(t, r.ended)
	close(charged)
	require.Equal(t, http.StatusNoContent, <-answer)
	require.NoError(t, <-r.ended)
	require.True(t, shipped)

	rdb := redis.NewClient(&redis.Options{Addr: r.redis.Addr()})
	queue, err := sluice.NewQueue(rdb, "orders")
	require.NoError(t, err)
	stats, err := queue.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Finished)
	require.Zero(t, stats.Due+stats.Leased)
	require.NoError(t, rdb.Close())
	r.redis.Close()
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 20*time.Second, 50*time.Millisecond, "goroutines are left") // one is that which looks
}
